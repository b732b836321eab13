//! The offering loop: what Waldur sells is compared with the catalogue, and what differs is put right, call by call, until a
//! look finds nothing left to do.

use std::collections::BTreeSet;

use uuid::Uuid;
use waldur_client::{Class, Offering};

use crate::agent::{Agent, Failure};
use crate::catalogue::View;
use crate::config::OfferingConfig;
use crate::gate::Peer;
use crate::plan::{Finding, Notes, OfferingAction, OfferingPlan, Shop, plan_offering};

/// Looks and changes in one go; a price of zero alone may take three.
const ROUNDS: usize = 8;

/// While one of these holds, usage may still be owed to a component: none is removed or retired.
const USAGE_OWED: [&str; 3] = ["usage-unread", "usage-withheld", "usage-refused"];

/// Conditions of one offering that a pass raises and clears.
const UNKEPT: &str = "offering-not-kept";
const OTHER_OWNER: &str = "offering-of-another-owner";
const NO_SUCH_PLAN: &str = "plan-not-found";
const NOT_OURS: &str = "component-not-ours";

/// What a pass over one offering did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    /// The calls that changed something.
    pub done: Vec<OfferingAction>,
    /// For people.
    pub findings: Vec<Finding>,
}

impl Agent {
    /// Compares every offering with the catalogue and puts right what differs.
    pub async fn offering_beat(&self) {
        let (mut changes, mut failed) = (0, 0);
        for settings in &self.config.offerings {
            let subject = settings.uuid.simple();
            match self.keep_offering(settings).await {
                Ok(kept) => {
                    self.conditions.clear(UNKEPT, subject);
                    self.note_findings(settings.uuid, &kept.findings);
                    changes += kept.done.len();
                    if !kept.done.is_empty() {
                        tracing::info!(offering = %subject, changes = kept.done.len(), "offering kept");
                    }
                }
                Err(failure) => {
                    failed += 1;
                    self.note_pass_failure(&failure);
                    self.conditions.raise(UNKEPT, subject, format!("offering {subject} is not as the catalogue says: {failure}"));
                }
            }
        }
        self.gateway_beat().await;
        self.progress.ended(
            "offering",
            match failed {
                0 => format!("{changes} changes"),
                failed => format!("{changes} changes, {failed} offerings not kept"),
            },
        );
    }

    /// What a plan for an offering depends on.
    pub(crate) fn shop<'a>(&'a self, settings: &'a OfferingConfig, view: &'a View) -> Shop<'a> {
        let usage_owed = USAGE_OWED.iter().any(|name| self.conditions.holds(name));
        Shop {
            owner: &self.config.owner,
            settings,
            view,
            now: self.clock.now(),
            late_days: self.config.usage.late_days,
            usage_owed,
            stubborn: false,
        }
    }

    /// What is left to do at an offering that was just read.
    ///
    /// # Errors
    /// What keeps the agent from touching it.
    pub fn offering_plan(&self, settings: &OfferingConfig, offering: &Offering) -> Result<OfferingPlan, String> {
        self.remember(offering);
        let view = self.catalogue().ok_or("the catalogue cannot be read; see `check`")?;
        plan_offering(&self.shop(settings, &view), offering)
    }

    /// Looks at an offering; what it knows about models is remembered before the catalogue is judged by it.
    pub(crate) async fn look_at_offering(&self, uuid: Uuid) -> Result<Offering, Failure> {
        let offering = self.waldur.offering(uuid).await?;
        self.note_answer(Peer::Waldur);
        self.remember(&offering);
        Ok(offering)
    }

    /// Looks, plans and applies until a look finds nothing left to do.
    ///
    /// # Errors
    /// A read or a write that failed, or a server that takes a change and does not keep it.
    pub async fn keep_offering(&self, settings: &OfferingConfig) -> Result<Kept, Failure> {
        let mut kept = Kept::default();
        let mut before = Vec::new();
        let mut stubborn = false;
        for _ in 0..ROUNDS {
            let offering = self.look_at_offering(settings.uuid).await?;
            let Some(view) = self.catalogue() else { return Ok(kept) };
            let shop = Shop { stubborn, ..self.shop(settings, &view) };
            let OfferingPlan { mut actions, findings } = match plan_offering(&shop, &offering) {
                Ok(plan) => plan,
                Err(foreign) => {
                    self.conditions.raise(OTHER_OWNER, settings.uuid.simple(), foreign);
                    return Ok(kept);
                }
            };
            self.conditions.clear(OTHER_OWNER, settings.uuid.simple());
            self.seen.note_components(&shop, &offering);
            kept.findings = findings;
            // After a restart no condition tells yet what is owed to a component.
            let removes = |action: &OfferingAction| matches!(action, OfferingAction::RemoveComponent { .. });
            if actions.iter().any(removes) && self.owes_usage().await {
                actions.retain(|action| !removes(action));
            }
            if actions.is_empty() {
                return Ok(kept);
            }
            if actions == before {
                if stubborn {
                    break;
                }
                stubborn = true;
                continue;
            }
            for action in &actions {
                self.must_lead()?;
                self.apply_to_offering(settings, &offering, action).await?;
                kept.done.push(action.clone());
            }
            before = actions;
        }
        let left = before.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        Err(Failure::Refused { peer: Peer::Waldur, message: format!("Waldur accepts these changes but does not keep them: {left}") })
    }

    pub(crate) async fn apply_to_offering(
        &self,
        settings: &OfferingConfig,
        seen: &Offering,
        action: &OfferingAction,
    ) -> Result<(), Failure> {
        let uuid = settings.uuid;
        let done = match action {
            OfferingAction::Note(notes) => self.waldur.set_offering_metadata(uuid, &notes.merged_into(seen)).await,
            OfferingAction::CreateComponent(component) => match self.waldur.create_component(uuid, component).await {
                // A server of 2024 answers 500 where the type exists already, as after an answer that was lost.
                Err(error) if !self.waldur.offering(uuid).await?.components.iter().any(|there| there.kind == component.kind) => Err(error),
                _ => Ok(()),
            },
            OfferingAction::UpdateComponent { uuid: component, change, .. } => self.waldur.update_component(uuid, *component, change).await,
            OfferingAction::SetPrices { plan, prices, .. } => self.waldur.set_prices(*plan, prices).await,
            OfferingAction::SetOptions(form) => self.waldur.set_offering_options(uuid, form).await,
            OfferingAction::SetResourceOptions(form) => self.waldur.set_resource_options(uuid, form).await,
            OfferingAction::RemoveComponent { uuid: component, kind } => {
                return self.remove_component(uuid, *component, kind, false).await.map(drop);
            }
        };
        done?;
        metrics::counter!("llm_access_actions_total", "action" => action.name()).increment(1);
        tracing::info!(offering = %uuid.simple(), action = action.name(), "{action}");
        Ok(())
    }

    /// Tries to remove a component; says why Waldur keeps it, or `None` where it is gone.
    pub(crate) async fn try_to_remove(&self, offering: Uuid, component: Uuid, kind: &str) -> Result<Option<String>, Failure> {
        let reason = match self.waldur.remove_component(offering, component).await {
            Ok(()) => None,
            Err(error) if error.class() == Class::NotFound => None,
            Err(error) => match refusal(&error) {
                Some(reason) => Some(reason),
                None => return Err(error.into()),
            },
        };
        // What counts is what Waldur shows.
        let seen = self.look_at_offering(offering).await?;
        let there = seen.components.iter().any(|component| component.kind == kind);
        if !there {
            metrics::counter!("llm_access_actions_total", "action" => "remove-component").increment(1);
            tracing::info!(offering = %offering.simple(), action = "remove-component", "component {kind} is removed, and its usage history in Waldur with it");
            return Ok(None);
        }
        Ok(Some(reason.unwrap_or_else(|| "Waldur took the removal and still shows the component".to_owned())))
    }

    /// Tries to remove a component. Where Waldur refuses, the reason is noted on the offering, by which the component counts
    /// as retired; `None` where it is gone.
    pub(crate) async fn remove_component(
        &self,
        offering: Uuid,
        component: Uuid,
        kind: &str,
        by_hand: bool,
    ) -> Result<Option<String>, Failure> {
        let Some(reason) = self.try_to_remove(offering, component, kind).await? else { return Ok(None) };
        let seen = self.look_at_offering(offering).await?;
        let mut notes = Notes::read(&seen);
        notes.owner.get_or_insert_with(|| self.config.owner.clone());
        let note = notes.components.entry(kind.to_owned()).or_default();
        note.refused = Some(self.clock.now());
        note.reason.clone_from(&reason);
        note.by_hand |= by_hand;
        self.must_lead()?;
        self.waldur.set_offering_metadata(offering, &notes.merged_into(&seen)).await?;
        tracing::info!(offering = %offering.simple(), "component {kind} cannot be removed and is retired: {reason}");
        Ok(Some(reason))
    }

    fn note_findings(&self, offering: Uuid, findings: &[Finding]) {
        let mut still: BTreeSet<(&'static str, String)> = BTreeSet::new();
        let uuid = offering.simple();
        let (mut pending, mut retired) = (0, 0);
        for finding in findings {
            match finding {
                Finding::NoSuchPlan(plan) => {
                    let subject = format!("{uuid} {plan}");
                    self.conditions.raise(NO_SUCH_PLAN, &subject, format!("offering {uuid}: {finding}"));
                    still.insert((NO_SUCH_PLAN, subject));
                }
                Finding::NotOurs { kind, .. } => {
                    let subject = format!("{uuid} {kind}");
                    self.conditions.raise(NOT_OURS, &subject, format!("offering {uuid}: {finding}"));
                    still.insert((NOT_OURS, subject));
                }
                Finding::Pending { .. } => pending += 1,
                Finding::Retired { .. } => retired += 1,
            }
        }
        let label = uuid.to_string();
        metrics::gauge!("llm_access_prices_pending", "offering" => label.clone()).set(crate::orders::count(pending));
        metrics::gauge!("llm_access_components_retired", "offering" => label.clone()).set(crate::orders::count(retired));
        for (name, subject, _) in self.conditions.all() {
            if [NO_SUCH_PLAN, NOT_OURS].contains(&name) && subject.starts_with(&label) && !still.contains(&(name, subject.clone())) {
                self.conditions.clear(name, subject);
            }
        }
    }
}

/// Waldur's own words for why a component cannot be removed, which only actions on components put under `details`. Any other
/// refusal, as of an archived offering or an answer that was cut, says nothing about the component.
fn refusal(error: &waldur_client::Error) -> Option<String> {
    match &error.kind {
        waldur_client::ErrorKind::Status { status: 400, fields, .. } => fields.get("details").map(|texts| texts.join("; ")),
        _ => None,
    }
}
