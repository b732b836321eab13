//! Tells Waldur the usage of one resource and month: compared first, sent once, read back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use rust_decimal::Decimal;
use uuid::Uuid;
use waldur_client::{Class, DailyUsage, Resource, ResourceState, Usage};

use crate::agent::{Agent, Failure};
use crate::clock::after;
use crate::domain::BillingMonth;
use crate::features::Feature;
use crate::gate::Peer;
use crate::plan::{Amounts, Decision, Filing, Lower, ModelTotals, daily_amounts, decide, filing};

/// A component that Waldur refused is left out for so long; the offering may change.
const REFUSED_FOR: Duration = Duration::from_secs(3600);
/// Most calls spent on finding which component of a batch Waldur refuses.
const MOST_TRIES: usize = 40;
/// Answers take seconds, and clocks drift by less.
const CLOCKS_MAY_DIFFER: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);

/// An offering, as far as usage is concerned.
#[derive(Clone, Debug)]
pub struct Seller {
    /// Its uuid.
    pub offering: Uuid,
    /// The types of its components that take usage.
    pub usable: BTreeSet<String>,
    /// Those of them whose usage Waldur wants by day as well.
    pub by_day: BTreeSet<String>,
    /// The models that are or were sold, by what their components begin with.
    pub sold: BTreeMap<String, String>,
    /// Tokens per unit.
    pub token_unit: Decimal,
}

/// How to report.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// Only compare.
    pub dry_run: bool,
    /// Lower figures that are too high in Waldur.
    pub allow_decrease: bool,
    /// A later chance will not come: the resource ends.
    pub final_usage: bool,
}

/// A figure that changes: component, what Waldur held before, the new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Component type.
    pub kind: String,
    /// What Waldur held.
    pub held: Decimal,
    /// What the ledger says.
    pub amount: Decimal,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:+.2} to {:.2}", self.kind, self.amount - self.held, self.amount)
    }
}

/// What became of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Waldur holds it already.
    Equal,
    /// Sent, and shown by Waldur.
    Sent(Vec<Change>),
    /// It would be sent.
    Would(Vec<Change>),
    /// The resource is in a state in which Waldur takes no usage.
    State(ResourceState),
    /// Waldur would file it under another month now.
    Waits(Vec<Change>),
    /// Waldur takes nothing for this month any more.
    Closed {
        /// Why.
        why: String,
        /// What stays unreported.
        unsent: Vec<Change>,
    },
}

/// The result of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    /// What became of it.
    pub outcome: Outcome,
    /// Figures that stay higher in Waldur than the ledger has them.
    pub lower: Vec<Lower>,
    /// Components of a final usage that Waldur refused while it took the others.
    pub refused: Vec<String>,
}

impl Agent {
    /// Reports one month of one resource. The caller holds the resource: a report that was computed from an older reading
    /// must not overtake a newer one.
    pub(crate) async fn report(
        &self,
        seller: &Seller,
        resource: &Resource,
        month: BillingMonth,
        amounts: &Amounts,
        days: &BTreeMap<Date, BTreeMap<String, ModelTotals>>,
        how: How,
    ) -> Result<Reported, Failure> {
        let id = resource.uuid;
        let held = self.held(id, month).await?;
        // What was filed here by mistake is taken out again.
        let misfiled = month == BillingMonth::of(self.clock.now()) && self.memory().usage.misfiled.contains(&id);
        let mut decision = decide(amounts, &held, &seller.usable, how.allow_decrease || misfiled);
        self.note_lower(id, month, &decision);
        let lower = std::mem::take(&mut decision.lower);
        let wanted = if how.final_usage { decision.send.clone() } else { Vec::new() };
        let outcome = self.tell(seller, resource, month, amounts, days, (decision, held.clone()), how).await?;
        let refused = match &outcome {
            Outcome::Sent(_) => {
                let memory = self.memory();
                let refused = |usage: &Usage| {
                    memory.usage.refused.contains_key(&(seller.offering, usage.kind.clone()))
                        && held.get(&usage.kind) != Some(&usage.amount)
                };
                wanted.into_iter().filter(refused).map(|usage| usage.kind).collect()
            }
            _ => Vec::new(),
        };
        if misfiled && matches!(outcome, Outcome::Equal | Outcome::Sent(_)) {
            self.memory().usage.misfiled.remove(&id);
        }
        Ok(Reported { outcome, lower, refused })
    }

    #[expect(clippy::too_many_arguments, reason = "one step of `report`")]
    async fn tell(
        &self,
        seller: &Seller,
        resource: &Resource,
        month: BillingMonth,
        amounts: &Amounts,
        days: &BTreeMap<Date, BTreeMap<String, ModelTotals>>,
        (mut decision, held): (Decision, BTreeMap<String, Decimal>),
        how: How,
    ) -> Result<Outcome, Failure> {
        let id = resource.uuid;
        // What is left out of a final usage is left out for ever: there it is tried again, and a refusal is told.
        let differs = !decision.send.is_empty();
        if !how.final_usage {
            self.leave_out_refused(seller.offering, &mut decision, &held);
        }
        if decision.send.is_empty() {
            if !differs {
                self.prove(id, month, amounts);
            }
            return Ok(Outcome::Equal);
        }
        let changes = changes(&decision, &held);
        if !takes_usage(&resource.state) {
            return Ok(Outcome::State(resource.state.clone()));
        }
        if let Some(why) = self.memory().usage.closed.get(&(id, month)).cloned() {
            return Ok(Outcome::Closed { why, unsent: changes });
        }
        let zone = TimeZone::get(&self.config.waldur.zone).unwrap_or(TimeZone::UTC);
        // Waldur files under its own now, so that its clock decides and not ours.
        let now = self.waldur_time();
        let file = |dated| filing(month, now, &zone, dated, self.config.usage.month_guard);
        let mut how_filed = file(self.features.known(Feature::DatedUsage));
        if how_filed == Filing::Ask && !how.dry_run {
            let dated = self.usage_is_dated(id).await?;
            how_filed = file(Some(dated));
        }
        let date = match how_filed {
            Filing::Now => None,
            Filing::Dated(date) => Some(date),
            Filing::Ask => return Ok(Outcome::Would(changes)),
            Filing::Wait => return Ok(Outcome::Waits(changes)),
            Filing::Closed => {
                return Ok(Outcome::Closed { why: "this Waldur takes no usage for a month that has ended".into(), unsent: changes });
            }
        };
        if how.dry_run {
            return Ok(Outcome::Would(changes));
        }
        self.must_lead()?;
        let daily = daily_of(seller, days, amounts);
        let past = month < BillingMonth::of(now);
        let sent = match self.send(seller.offering, id, decision.send, &daily, date, past).await? {
            Sending::Sent(sent) => sent,
            Sending::Closed(why) => {
                tracing::warn!(resource = %id.simple(), %month, "Waldur takes no usage of {month} any more; it is not tried again: {why}");
                self.memory().usage.closed.insert((id, month), why.clone());
                return Ok(Outcome::Closed { why, unsent: changes });
            }
        };
        let shown = self.held(id, month).await?;
        let missing: Vec<&str> =
            sent.iter().filter(|usage| shown.get(&usage.kind) != Some(&usage.amount)).map(|usage| usage.kind.as_str()).collect();
        if !missing.is_empty() {
            if date.is_some() {
                self.look_for_misfiled(id, &sent).await?;
            }
            let message = format!(
                "usage of {month} was sent for resource {} but Waldur does not show it for {}; does its clock and `waldur.zone` agree with ours?",
                id.simple(),
                missing.join(", ")
            );
            self.conditions.raise("usage-not-shown", id.simple(), &message);
            return Err(Failure::Transient { peer: Peer::Waldur, message, retry_after: None, unreachable: false });
        }
        if date.is_some() {
            self.features.learn(Feature::DatedUsage, true);
        }
        self.conditions.clear("usage-not-shown", id.simple());
        self.prove(id, month, amounts);
        metrics::counter!("llm_access_usage_reported_total").increment(1);
        tracing::info!(resource = %id.simple(), %month, components = sent.len(), "{} reported and read back: {}", if how.final_usage { "final usage" } else { "usage" }, shown_changes(&changes));
        Ok(Outcome::Sent(changes))
    }

    /// Waldur's time as of its last answer, which was just now.
    fn waldur_time(&self) -> jiff::Timestamp {
        const NAME: &str = "clocks-differ";
        let ours = self.clock.now();
        let theirs = self.waldur.server_time().unwrap_or(ours);
        if theirs.duration_since(ours).abs() > CLOCKS_MAY_DIFFER {
            self.conditions.raise(NAME, "", "the clocks of Waldur and of this machine differ by more than a minute; usage is filed by Waldur's and read by ours. Set both right");
        } else {
            self.conditions.clear(NAME, "");
        }
        theirs
    }

    /// What Waldur holds for a resource and month, by component.
    pub(crate) async fn held(&self, resource: Uuid, month: BillingMonth) -> Result<BTreeMap<String, Decimal>, Failure> {
        let rows = self.waldur.usages(resource, month.first_day()).await?;
        let mut held = BTreeMap::new();
        for row in rows {
            hold(&mut held, row.kind, row.usage);
        }
        Ok(held)
    }

    pub(super) fn prove(&self, resource: Uuid, month: BillingMonth, amounts: &Amounts) {
        let now = self.clock.now();
        self.memory().usage.proven.insert((resource, month), (amounts.clone(), now));
    }

    /// A dated figure is not where it belongs. Either the call came to nothing, or the server ignored its date and filed it
    /// under the running month: then it is one that does not date usage, and the running month's own figure is set again.
    async fn look_for_misfiled(&self, resource: Uuid, sent: &[Usage]) -> Result<(), Failure> {
        let running = self.held(resource, BillingMonth::of(self.clock.now())).await?;
        if sent.iter().all(|usage| running.get(&usage.kind) == Some(&usage.amount)) {
            tracing::error!(resource = %resource.simple(), "Waldur filed the usage of a past month under the running one; it is set right, and nothing of a past month is sent any more");
            self.features.learn(Feature::DatedUsage, false);
            let mut memory = self.memory();
            memory.usage.misfiled.insert(resource);
            memory.usage.proven.retain(|(of, _), _| *of != resource);
        }
        Ok(())
    }

    fn note_lower(&self, resource: Uuid, month: BillingMonth, decision: &Decision) {
        const NAME: &str = "usage-lower";
        let subject = format!("{} {month}", resource.simple());
        if decision.lower.is_empty() {
            self.conditions.clear(NAME, subject);
            return;
        }
        let figures: Vec<String> = decision
            .lower
            .iter()
            .map(|Lower { kind, held, ledger }| format!("{kind}: Waldur holds {held:.2}, the ledger shows {ledger:.2}"))
            .collect();
        self.conditions.raise(
            NAME,
            subject,
            format!("{month}: {}; a figure in Waldur is not lowered by itself. Look with `usage audit --month {month}`, then `usage report --allow-decrease`", figures.join("; ")),
        );
    }

    /// Components that Waldur refused a while ago stay as they are.
    fn leave_out_refused(&self, offering: Uuid, decision: &mut Decision, held: &BTreeMap<String, Decimal>) {
        let now = self.clock.now();
        let mut memory = self.memory();
        memory.usage.refused.retain(|_, at| after(*at, REFUSED_FOR) > now);
        if memory.usage.refused.is_empty() {
            return;
        }
        decision.send.retain(|usage| !memory.usage.refused.contains_key(&(offering, usage.kind.clone())));
        if decision.send.iter().all(|usage| held.get(&usage.kind) == Some(&usage.amount)) {
            decision.send.clear();
        }
    }

    /// Sends all components in one batch. One that Waldur refuses spoils the batch: it is found, named and left out.
    async fn send(
        &self,
        offering: Uuid,
        resource: Uuid,
        usages: Vec<Usage>,
        daily: &[DailyUsage],
        date: Option<jiff::Timestamp>,
        past: bool,
    ) -> Result<Sending, Failure> {
        let days_of = |usages: &[Usage]| -> Vec<DailyUsage> {
            let has = |day: &&DailyUsage| usages.iter().any(|usage| usage.kind == day.kind);
            daily.iter().filter(has).cloned().collect()
        };
        let mut left = usages;
        let mut bad: Vec<String> = Vec::new();
        for _ in 0..MOST_TRIES {
            let error = match self.waldur.set_usage_by_day(resource, &left, &days_of(&left), date).await {
                Ok(()) => {
                    // It may have been refused an hour ago, or for another resource.
                    let mut memory = self.memory();
                    memory.usage.refused.retain(|(of, kind), _| *of != offering || !left.iter().any(|usage| usage.kind == *kind));
                    let none = !memory.usage.refused.keys().any(|(of, _)| *of == offering);
                    drop(memory);
                    if none {
                        self.conditions.clear("usage-component-refused", offering.simple());
                    }
                    self.note_refused(offering, &bad);
                    return Ok(Sending::Sent(left));
                }
                Err(error) => error,
            };
            if error.class() == Class::NoSuchRoute {
                // Every Waldur takes usage; one that is being exchanged may not for a moment, and a final usage must outlast it.
                return Err(later(error));
            }
            if error.class() != Class::Refused || error.status() != Some(400) || error.is_about("resource") {
                return Err(error.into());
            }
            if error.is_about("date") || is_about_a_past_month(&error) {
                // A running month is never closed: then the clocks differ by a moment, and a date of ours lies in Waldur's future.
                return if past { Ok(Sending::Closed(Failure::from(error).to_string())) } else { Err(later(error)) };
            }
            let places = error.refused_usages();
            let mut named: Vec<String> = error.invalid_components();
            named.extend(places.into_iter().filter_map(|at| left.get(at).map(|usage| usage.kind.clone())));
            named.retain(|kind| left.iter().any(|usage| usage.kind == *kind));
            if named.is_empty() {
                named = self.find_refused(resource, &left, date).await?;
            }
            if named.is_empty() || named.len() == left.len() {
                self.note_refused(offering, &named);
                return Err(error.into());
            }
            left.retain(|usage| !named.contains(&usage.kind));
            bad.append(&mut named);
        }
        Err(Failure::Refused {
            peer: Peer::Waldur,
            message: format!("Waldur refuses the usage of resource {} component by component", resource.simple()),
        })
    }

    /// Which of a refused batch are refused by themselves, by halving.
    async fn find_refused(&self, resource: Uuid, usages: &[Usage], date: Option<jiff::Timestamp>) -> Result<Vec<String>, Failure> {
        let halves = |batch: &[Usage]| {
            let (a, b) = batch.split_at(batch.len() / 2);
            [b.to_vec(), a.to_vec()]
        };
        let mut refused = Vec::new();
        // The whole batch was refused already.
        let mut open: Vec<Vec<Usage>> = if usages.len() > 1 { halves(usages).into() } else { Vec::new() };
        for _ in 0..MOST_TRIES {
            let Some(batch) = open.pop() else { break };
            match self.waldur.set_usage(resource, &batch, date).await {
                Ok(()) => {}
                Err(error) if error.class() == Class::Refused && batch.len() > 1 => open.extend(halves(&batch)),
                Err(error) if error.class() == Class::Refused => refused.extend(batch.into_iter().map(|usage| usage.kind)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(refused)
    }

    fn note_refused(&self, offering: Uuid, kinds: &[String]) {
        if kinds.is_empty() {
            return;
        }
        let now = self.clock.now();
        let mut memory = self.memory();
        for kind in kinds {
            memory.usage.refused.insert((offering, kind.clone()), now);
        }
        let all: Vec<&str> = memory.usage.refused.keys().filter(|(of, _)| *of == offering).map(|(_, kind)| kind.as_str()).collect();
        let mut all: Vec<String> = all.into_iter().map(str::to_owned).collect();
        drop(memory);
        all.sort();
        self.conditions.raise(
            "usage-component-refused",
            offering.simple(),
            format!(
                "Waldur refuses usage for {} of offering {}; the other components are reported. Compare the components of the offering",
                all.join(", "),
                offering.simple()
            ),
        );
    }

    /// Whether this server files usage under the date it is given: by what a read-back showed, or else by its generation.
    /// The first generation does not, and has no record of the last look at a resource either.
    async fn usage_is_dated(&self, resource: Uuid) -> Result<bool, Failure> {
        if let Some(known) = self.features.known(Feature::DatedUsage).or(self.features.known(Feature::LastSync)) {
            return Ok(known);
        }
        match self.waldur.refresh_last_sync(resource).await {
            Ok(()) => self.features.learn(Feature::LastSync, true),
            Err(error) if error.class() == Class::NoSuchRoute => self.features.learn(Feature::LastSync, false),
            Err(error) => return Err(error.into()),
        };
        Ok(self.features.known(Feature::LastSync) == Some(true))
    }
}

/// The days of the month, for components with a spending limit per day or week.
fn daily_of(seller: &Seller, days: &BTreeMap<Date, BTreeMap<String, ModelTotals>>, amounts: &Amounts) -> Vec<DailyUsage> {
    if seller.by_day.is_empty() || amounts.partial || !amounts.unknown.is_empty() {
        return Vec::new();
    }
    daily_amounts(days, &seller.by_day, seller.token_unit)
}

/// Adds a figure that Waldur shows. One that is too large to be added is more than any ledger has, so that nothing is sent.
pub(super) fn hold(held: &mut BTreeMap<String, Decimal>, kind: String, usage: Decimal) {
    let sum = held.entry(kind).or_insert(Decimal::ZERO);
    *sum = sum.saturating_add(usage);
}

enum Sending {
    Sent(Vec<Usage>),
    Closed(String),
}

/// The states in which Waldur takes usage.
#[must_use]
pub fn takes_usage(state: &ResourceState) -> bool {
    matches!(state, ResourceState::Ok | ResourceState::Updating | ResourceState::Terminating)
}

/// A refusal that another time may not be one.
fn later(error: waldur_client::Error) -> Failure {
    Failure::Transient { peer: Peer::Waldur, message: error.to_string(), retry_after: error.retry_after(), unreachable: false }
}

fn is_about_a_past_month(error: &waldur_client::Error) -> bool {
    let text = error.to_string().to_lowercase();
    ["past month", "past billing period", "invoice is"].iter().any(|words| text.contains(words))
}

fn changes(decision: &Decision, held: &BTreeMap<String, Decimal>) -> Vec<Change> {
    let change =
        |usage: &Usage| Change { kind: usage.kind.clone(), held: held.get(&usage.kind).copied().unwrap_or_default(), amount: usage.amount };
    decision.send.iter().map(change).filter(|change| change.held != change.amount).collect()
}

/// Changes as people read them.
#[must_use]
pub fn shown_changes(changes: &[Change]) -> String {
    if changes.is_empty() { "+0.00".into() } else { changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ") }
}
