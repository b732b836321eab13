//! Usage: what Waldur is told equals the gateway's ledger, per UTC month, exactly once.
//!
//! [`pass`] reports all resources on a slow beat, [`report`] is the one place that tells Waldur, [`ledger`] the one that
//! reads the gateway, and this module reports the final usage of a resource that ends. Totals are set, never added, so that
//! repeating anything is safe, and "sent" is only what a read-back shows.

pub mod audit;
pub(crate) mod budget;
mod keys;
mod ledger;
mod months;
pub mod pass;
mod plans;
pub mod report;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde_json::{Map, Value, json};
use uuid::Uuid;
use waldur_client::{Order, Resource};

use crate::agent::{Agent, Failure};
use crate::clock::after;
use crate::config::OfferingConfig;
use crate::domain::{BillingMonth, team_id};
use crate::gate::Peer;
use crate::plan::{Notes, Proven, TeamUse, component_amounts, usable_components};
use ledger::{LogMemory, Whose};
use report::{How, Outcome, Seller};

/// A final usage that Waldur refuses this often, and for so long, is recorded as unbilled, so that the termination goes on.
const REFUSALS: u32 = 3;
const REFUSED_FOR: Duration = Duration::from_secs(3600);
/// So long an end waits for calls that the gateway's log lacks.
const UNPROVEN_FOR: Duration = Duration::from_secs(3600);

/// What the usage passes of a process remember. Losing it costs a few reads, never a figure.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Digests of the amounts that a reading of Waldur showed to be there, and when.
    proven: HashMap<(Uuid, BillingMonth), ([u8; 32], Timestamp)>,
    /// Months of resources that Waldur takes nothing for any more.
    closed: HashMap<(Uuid, BillingMonth), String>,
    /// Components that Waldur refused, by offering where it does not know them there, else by resource, and when.
    refused: HashMap<(Uuid, String), Timestamp>,
    /// Since when the final usage of an order is refused.
    refused_since: HashMap<Uuid, Timestamp>,
    /// Reports that were sent and are not seen in Waldur yet.
    sending: HashSet<(Uuid, BillingMonth)>,
    /// When the final usage of a resource was told.
    finals: HashMap<Uuid, Timestamp>,
    /// Orders and months whose usage is counted as unbilled.
    unbilled: HashSet<(Uuid, BillingMonth)>,
    /// What Waldur was told about the plans of resources.
    plans: HashMap<Uuid, plans::Plans>,
    /// What became of the last report for an API key.
    keys: HashMap<(Uuid, BillingMonth), keys::Told>,
    /// What Waldur does not hold yet, by resource (`None`: of the ledger as a whole) and month.
    owed: BTreeMap<months::Subject, months::Owed>,
    /// The same of months that are over and are not reported any more.
    lost: BTreeMap<months::Subject, months::Owed>,
    /// The last month that was looked at after its end.
    looked: Option<BillingMonth>,
    /// Since when the final usage of an order is not proven by the log of calls.
    unproven_since: HashMap<Uuid, Timestamp>,
    /// What the log of calls said.
    log: LogMemory,
}

impl Memory {
    /// Nothing that was tried for the end of a resource counts any more.
    pub(crate) fn forget_end(&mut self, order: Uuid) {
        self.refused_since.remove(&order);
        self.unproven_since.remove(&order);
    }
}

impl Agent {
    /// Reports the usage of every month since `since`. `Some(wait)` where a second, equal reading is still due, or where
    /// Waldur would file it under the wrong month now.
    pub(crate) async fn bill(
        &self,
        order: &Order,
        offering: Uuid,
        resource: &Resource,
        since: Timestamp,
    ) -> Result<Option<Duration>, Failure> {
        let now = self.clock.now();
        // The order may have waited since an earlier month, and a team that was removed by hand says no more since when it
        // was blocked. Late rows of the month before count as long as for a pass: after the end nothing is taken.
        let since = order.created.map_or(since, |created| created.min(since)).min(now);
        let since = self.open_months(now).first().map_or(since, |open| open.start().min(since));
        let months = BillingMonth::span(since, now);
        let (Some(first), Some(last)) = (months.first(), months.last()) else { return Ok(None) };
        let team = team_id(resource.uuid);
        let (teams, sold) = (BTreeSet::from([team.clone()]), BTreeMap::new());
        let whose = Whose { only: &[&team], teams: &teams, sold: &sold };
        let proven = self.read_ledger(whose, first.first_day(), last.last_day()).await?;
        if let Some(withheld) = proven.withheld.first() {
            let message = format!("the gateway's ledger does not add up ({withheld}); the final usage is read again");
            return Err(Failure::Transient { peer: Peer::Gateway, message, retry_after: None, unreachable: false });
        }
        let used: Vec<_> = months.iter().map(|month| (*month, proven.team(&team, month.first_day(), month.last_day()))).collect();
        if let Some(wait) = self.settled(order.uuid, format!("{used:?}"), now) {
            return Ok(Some(wait));
        }
        if let Some(why) = unproven(&proven, &used)
            && !self.waited_for_the_log(order.uuid, now)
        {
            let message = format!(
                "the gateway's log of calls does not bear out its ledger ({why}); the final usage is read again, for up to an hour"
            );
            return Err(Failure::Transient { peer: Peer::Gateway, message, retry_after: None, unreachable: false });
        }
        let seller = self.seller(offering).await?;
        let resource = &mut resource.clone();
        for (month, used) in &used {
            let amounts = component_amounts(&used.models, &seller.usable, seller.token_unit, &used.untold, used.partial);
            if !amounts.homeless.is_empty() {
                let models = amounts.homeless.join(", ");
                self.conditions.raise(
                    "usage-without-component",
                    resource.uuid.simple(),
                    format!("{month}: usage of {models} has no component in the offering and cannot be billed"),
                );
                self.note_unbilled(order.uuid, resource, *month, &format!("no component for {models}")).await?;
            }
            if used.partial {
                let why = unproven(&proven, &[]).unwrap_or_else(|| "a part of the ledger is withheld".into());
                self.note_unbilled(order.uuid, resource, *month, &why).await?;
            }
            if !amounts.unknown.is_empty() {
                let kinds = listed(&amounts.unknown);
                let why = format!("{kinds}: the models share an upstream, and the log of calls does not tell them apart");
                self.note_unbilled(order.uuid, resource, *month, &why).await?;
            }
            let reported = self.report(&seller, resource, *month, &amounts, &used.days, How { final_usage: true, ..How::default() }).await;
            if let Ok(reported) = &reported
                && !reported.refused.is_empty()
            {
                self.note_unbilled(order.uuid, resource, *month, &format!("Waldur refuses usage for {}", reported.refused.join(", ")))
                    .await?;
            }
            match reported.map(|reported| reported.outcome) {
                Ok(Outcome::Equal | Outcome::Sent(_) | Outcome::Would(_)) => {}
                Ok(Outcome::State(state)) => {
                    self.note_unbilled(order.uuid, resource, *month, &format!("Waldur takes no usage of a resource that is {state}"))
                        .await?
                }
                Ok(Outcome::Waits(_)) => return Ok(Some(self.config.usage.month_guard.max(self.config.terminate.settle))),
                Ok(Outcome::Closed { why, .. }) => self.note_unbilled(order.uuid, resource, *month, &why).await?,
                Err(failure @ Failure::Refused { .. }) if self.refused_for_good(order, &failure) => {
                    self.note_unbilled(order.uuid, resource, *month, &failure.to_string()).await?
                }
                Err(failure) => return Err(failure),
            }
            self.try_keys(&seller, resource.uuid, *month, used, None).await;
        }
        let mut memory = self.memory();
        // What a pass read before this is older than the final figures.
        memory.usage.finals.insert(resource.uuid, self.clock.now());
        // It is billed, or noted as unbilled; and another life of the resource begins with another plan.
        memory.usage.owed.retain(|(of, _), _| *of != Some(resource.uuid));
        memory.usage.plans.remove(&resource.uuid);
        Ok(None)
    }

    /// Compares a reading with the one before; `Some(wait)` until two that are far enough apart are equal.
    fn settled(&self, order: Uuid, reading: String, now: Timestamp) -> Option<Duration> {
        let settle = self.config.terminate.settle;
        let mut memory = self.memory();
        match memory.readings.get(&order) {
            Some((at, same)) if *same == reading && *at <= now => {
                let left = now.duration_until(after(*at, settle));
                Duration::try_from(left).ok().filter(|left| !left.is_zero())
            }
            _ => {
                memory.readings.insert(order, (now, reading));
                Some(settle)
            }
        }
    }

    /// Whether the final usage of this order has waited long enough for calls that the log lacks.
    fn waited_for_the_log(&self, order: Uuid, now: Timestamp) -> bool {
        let since = *self.memory().usage.unproven_since.entry(order).or_insert(now);
        now >= after(since, UNPROVEN_FOR)
    }

    /// The offering as usage sees it, read anew.
    pub(crate) async fn seller(&self, offering: Uuid) -> Result<Seller, Failure> {
        let settings: &OfferingConfig = self
            .offering(offering)
            .ok_or_else(|| Failure::Refused { peer: Peer::Waldur, message: format!("offering {} is not configured", offering.simple()) })?;
        let offering = self.waldur.offering(offering).await?;
        let usable = usable_components(&offering.components);
        let noted = Notes::read(&offering).components;
        let sold = usable.iter().filter_map(|kind| {
            let key = kind.strip_suffix(":input").or_else(|| kind.strip_suffix(":output"))?;
            let name = noted.get(kind).and_then(|note| note.model.clone()).unwrap_or_else(|| key.to_owned());
            Some((key.to_owned(), name))
        });
        let sold = sold.collect();
        let by_day = offering
            .components
            .iter()
            .filter(|component| component.by_day && usable.contains(&component.kind))
            .map(|component| component.kind.clone())
            .collect();
        Ok(Seller { offering: offering.uuid, usable, by_day, sold, token_unit: Decimal::from(settings.token_unit.tokens()) })
    }

    fn refused_for_good(&self, order: &Order, failure: &Failure) -> bool {
        // This one is counted when the turn ends with it.
        let refusals = self.schedule.refusals(order.uuid).saturating_add(1);
        let now = self.clock.now();
        let since = *self.memory().usage.refused_since.entry(order.uuid).or_insert(now);
        tracing::debug!(refusals, %since, "the final usage is refused: {failure}");
        refusals >= REFUSALS && now >= after(since, REFUSED_FOR)
    }

    /// Records usage that cannot be billed where people find it: the log, a metric, a condition and the resource itself.
    async fn note_unbilled(&self, order: Uuid, resource: &mut Resource, month: BillingMonth, why: &str) -> Result<(), Failure> {
        // Every attempt comes by here.
        if self.memory().usage.unbilled.insert((order, month)) {
            metrics::counter!("llm_access_unbilled_total").increment(1);
        }
        self.conditions.raise("unbilled", format!("{} {month}", resource.uuid.simple()), format!("usage of {month} is not billed: {why}"));
        let mut metadata = resource.backend_metadata.clone();
        let ours = metadata.entry("llm_access").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(ours) = ours {
            let unbilled = ours.entry("unbilled").or_insert_with(|| json!({}));
            if let Value::Object(months) = unbilled {
                if months.contains_key(&month.to_string()) {
                    return Ok(());
                }
                months.insert(month.to_string(), Value::String("usage of this month could not be reported".into()));
            }
        }
        self.waldur.set_backend_metadata(resource.uuid, &metadata).await?;
        // The next month is noted beside this one.
        resource.backend_metadata = metadata;
        Ok(())
    }
}

/// What of a final usage the log of calls does not bear out: failed calls that cannot be taken out, or models that it does
/// not tell apart.
fn unproven(proven: &Proven, used: &[(BillingMonth, TeamUse)]) -> Option<String> {
    let held = proven.unproven.iter().chain(&proven.waiting).chain(&proven.merged).next();
    let untold = used.iter().flat_map(|(_, used)| used.untold.keys()).next();
    held.map(ToString::to_string).or_else(|| untold.map(|model| format!("{model:?} is not told apart from another model")))
}

fn listed(names: &BTreeSet<String>) -> String {
    names.iter().cloned().collect::<Vec<_>>().join(", ")
}
