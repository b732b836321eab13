//! Tells Waldur the usage of one resource and month: compared first, sent once, read back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use rust_decimal::Decimal;
use uuid::Uuid;
use waldur_client::{Class, DailyUsage, Resource, ResourceState, Usage, UsageReport};

use super::plans::rest;
use crate::agent::{Agent, Failure};
use crate::clock::after;
use crate::domain::BillingMonth;
use crate::features::Feature;
use crate::gate::Peer;
use crate::plan::{Amounts, Decision, Filing, Lower, ModelTotals, daily_amounts, decide, filing, is_over};

/// A component that Waldur refused is left out for so long; the offering may change.
const REFUSED_FOR: Duration = Duration::from_secs(3600);
/// Most calls spent on finding which component of a batch Waldur refuses.
const MOST_TRIES: usize = 40;
/// Figures that were sent for another month than Waldur filed them under.
const MISFILED: &str = "usage-misfiled";
/// Answers take seconds, and clocks drift by less.
const CLOCKS_MAY_DIFFER: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);
/// What is further apart, over a month's end, is no matter of clocks that drift.
const CLOCKS_MAY_LIE_APART: jiff::SignedDuration = jiff::SignedDuration::from_hours(1);

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

/// What Waldur holds for a resource and month.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// By component, over all plans that the resource had in the month.
    pub by_kind: BTreeMap<String, Decimal>,
    /// Components whose figure was sent for another month, and for which: this server ignored the date.
    misfiled: BTreeMap<String, BillingMonth>,
    /// What components were told over all plans of the month, before it was known what the server does with that.
    over_plans: BTreeMap<String, Decimal>,
    /// There are figures of several plans.
    pub many_plans: bool,
}

/// A mark on a figure, so that one that the server made something else of is known for what it is, also by another process:
/// it was filed under another month than that of its date, or added to what earlier plans hold.
#[derive(Clone, Copy, Debug)]
struct Mark {
    month: BillingMonth,
    /// The figure is the month's total over several plans.
    over_plans: bool,
}

const MARK: &str = "usage of ";
const OVER_PLANS: &str = " over all plans";

impl Mark {
    fn on(self, usage: &Usage) -> String {
        let month = self.month;
        if self.over_plans { format!("{MARK}{month}: {:.2}{OVER_PLANS}", usage.amount) } else { format!("{MARK}{month}") }
    }

    /// The month and the total that a mark tells of.
    fn read(text: &str) -> Option<(BillingMonth, Option<Decimal>)> {
        let mark = text.strip_prefix(MARK)?;
        let (month, total) = mark.split_once(": ").map_or((mark, None), |(month, rest)| (month, rest.strip_suffix(OVER_PLANS)));
        Some((month.parse().ok()?, total.and_then(|total| total.parse().ok())))
    }
}

impl Held {
    /// Whether a figure was put into this month by mistake: it was sent for another one, or the server shows more than it was
    /// told over all plans.
    fn is_mistaken(&self, kind: &str) -> bool {
        let more = self.over_plans.get(kind).is_some_and(|told| self.by_kind.get(kind).is_some_and(|shown| shown > told));
        more || self.misfiled.contains_key(kind)
    }
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
        // What was filed here by mistake, or added to what it contains, counts as not there, whatever of the month is known.
        let ledger = |kind: &str| amounts.by_kind.get(kind).copied().unwrap_or_default();
        let mistaken = held.by_kind.iter().filter(|(kind, value)| held.is_mistaken(kind) && **value > ledger(kind));
        let wrong: BTreeSet<String> = mistaken.map(|(kind, _)| kind.clone()).filter(|kind| seller.usable.contains(kind)).collect();
        let (unknown, wrong): (BTreeSet<String>, BTreeSet<String>) = wrong.into_iter().partition(|kind| amounts.unknown.contains(kind));
        self.note_misfiled(id, month, &held, &wrong, &unknown);
        if wrong.iter().any(|kind| held.misfiled.contains_key(kind)) {
            self.features.learn(Feature::DatedUsage, false);
        }
        if wrong.iter().any(|kind| held.over_plans.contains_key(kind)) {
            self.features.learn(Feature::PlanSplit, false);
        }
        let mut believed = held.by_kind.clone();
        believed.retain(|kind, _| !wrong.contains(kind));
        let mut decision = decide(amounts, &believed, &seller.usable, false);
        let mut ends = false;
        if how.allow_decrease && !decision.lower.is_empty() {
            // Its final usage may have been told since it was listed, and this is an older reading.
            ends = self.waldur.resource(id).await?.state == ResourceState::Terminating;
            if !ends {
                decision = decide(amounts, &believed, &seller.usable, true);
            }
        }
        let told: BTreeSet<&String> = decision.send.iter().map(|usage| &usage.kind).collect();
        let nothing: Vec<Usage> =
            wrong.iter().filter(|kind| !told.contains(kind)).map(|kind| Usage { kind: kind.clone(), amount: ledger(kind) }).collect();
        decision.send.extend(nothing);
        self.note_lower(id, month, &decision, ends);
        let lower = std::mem::take(&mut decision.lower);
        let wanted = if how.final_usage { decision.send.clone() } else { Vec::new() };
        let outcome = self.tell(seller, resource, month, amounts, days, (decision, &held), how).await?;
        let refused = match &outcome {
            Outcome::Sent(_) => {
                let memory = self.memory();
                let refused = |usage: &Usage| {
                    [seller.offering, id].iter().any(|of| memory.usage.refused.contains_key(&(*of, usage.kind.clone())))
                        && held.by_kind.get(&usage.kind) != Some(&usage.amount)
                };
                wanted.into_iter().filter(refused).map(|usage| usage.kind).collect()
            }
            _ => Vec::new(),
        };
        if matches!(outcome, Outcome::Sent(_)) && unknown.is_empty() {
            self.conditions.clear(MISFILED, format!("{} {month}", id.simple()));
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
        (mut decision, held): (Decision, &Held),
        how: How,
    ) -> Result<Outcome, Failure> {
        let id = resource.uuid;
        // What is left out of a final usage is left out for ever: there it is tried again, and a refusal is told.
        let differs = !decision.send.is_empty();
        if !how.final_usage {
            self.leave_out_refused(seller.offering, id, &mut decision, held);
        }
        if decision.send.is_empty() {
            if !differs {
                self.prove(id, month, amounts);
                self.paid(id, month, None);
            }
            return Ok(Outcome::Equal);
        }
        let changes = changes(&decision, held);
        if !takes_usage(&resource.state) {
            return Ok(Outcome::State(resource.state.clone()));
        }
        if let Some(why) = self.memory().usage.closed.get(&(id, month)).cloned() {
            return Ok(Outcome::Closed { why, unsent: changes });
        }
        let zone = TimeZone::get(&self.config.waldur.zone).unwrap_or(TimeZone::UTC);
        // Waldur files under its own now, so that its clock decides and not ours.
        let now = self.waldur_time();
        if !self.is_believable(now) {
            return Ok(Outcome::Waits(changes));
        }
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
        let past = month < BillingMonth::of(now);
        if past && held.many_plans && self.features.known(Feature::PlanSplit) != Some(true) {
            let why = "the plan of the resource changed in that month, and Waldur no longer shows which figure belongs to which";
            return Ok(Outcome::Closed { why: why.into(), unsent: changes });
        }
        if how.dry_run {
            return Ok(Outcome::Would(changes));
        }
        self.must_lead()?;
        let earlier = if past { BTreeMap::new() } else { self.earlier_plans(resource, month, held).await? };
        let splits = earlier.is_empty() || self.splits_plans(id).await?;
        let totals = decision.send;
        let daily = daily_of(seller, days, amounts);
        // What is marked otherwise is marked anew.
        let marks = date.is_some() || !earlier.is_empty() || !held.misfiled.is_empty() || !held.over_plans.is_empty();
        let plain = marks.then_some(Mark { month, over_plans: false });
        let unsure = splits && !earlier.is_empty() && self.features.known(Feature::PlanSplit).is_none();
        let mark = if unsure { Some(Mark { month, over_plans: true }) } else { plain };
        let call = Call { offering: seller.offering, resource: id, daily: &daily, date, mark, past };
        let send = if splits { totals.clone() } else { rest(&totals, &earlier) };
        self.memory().usage.sending.insert((id, month));
        let sending = self.send(&call, send).await;
        if matches!(sending, Ok(Sending::Closed(_)) | Err(Failure::Refused { .. })) {
            self.memory().usage.sending.remove(&(id, month));
        }
        let sent = match sending? {
            Sending::Sent(sent) => sent,
            Sending::Closed(why) => {
                tracing::warn!(resource = %id.simple(), %month, "Waldur takes no usage of {month} any more; it is not tried again: {why}");
                self.memory().usage.closed.insert((id, month), why.clone());
                return Ok(Outcome::Closed { why, unsent: changes });
            }
        };
        let sent: Vec<Usage> = totals.iter().filter(|total| sent.iter().any(|usage| usage.kind == total.kind)).cloned().collect();
        let mut shown = self.held(id, month).await?;
        let holds = |shown: &Held, usages: &[Usage]| usages.iter().all(|usage| shown.by_kind.get(&usage.kind) == Some(&usage.amount));
        if !earlier.is_empty() && !holds(&shown, &sent) {
            // This server does with earlier plans what the others do not.
            let (other, instead) = match splits {
                true => (doubled(&sent, &earlier), rest(&sent, &earlier)),
                false => (rest(&sent, &earlier), sent.clone()),
            };
            if holds(&shown, &other) {
                self.features.learn(Feature::PlanSplit, !splits);
                self.send(&Call { mark: plain, ..call }, instead).await?;
                shown = self.held(id, month).await?;
            }
        } else if !earlier.is_empty() {
            self.features.learn(Feature::PlanSplit, splits);
        }
        let missing: Vec<&str> =
            sent.iter().filter(|usage| shown.by_kind.get(&usage.kind) != Some(&usage.amount)).map(|usage| usage.kind.as_str()).collect();
        if !missing.is_empty() {
            if date.is_some() {
                self.look_for_misfiled(id, month, BillingMonth::of_date(now.to_zoned(zone).date())).await?;
            }
            let message = format!(
                "usage of {month} was sent for resource {} but Waldur does not show it for {}; does its clock and `waldur.zone` agree with ours?",
                id.simple(),
                missing.join(", ")
            );
            self.conditions.raise("usage-not-shown", id.simple(), &message);
            return Err(Failure::Transient { peer: Peer::Waldur, message, retry_after: None, unreachable: false });
        }
        // What a server shows under a month that runs there says nothing about dates.
        if date.is_some() && is_over(month, now, &zone, self.config.usage.month_guard) {
            self.features.learn(Feature::DatedUsage, true);
        }
        self.conditions.clear("usage-not-shown", id.simple());
        self.prove(id, month, amounts);
        self.paid(id, month, (sent.len() < totals.len()).then_some(sent.as_slice()));
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

    /// Whether Waldur's time can be what usage is filed by. One that is hours from ours and in another month is that of an answer
    /// which something in between kept for later, or one of the two clocks is wrong; either way the figures could land in a month that they do not belong to.
    fn is_believable(&self, theirs: jiff::Timestamp) -> bool {
        let ours = self.clock.now();
        theirs.duration_since(ours).abs() <= CLOCKS_MAY_LIE_APART || BillingMonth::of(theirs) == BillingMonth::of(ours)
    }

    /// What Waldur holds for a resource and month.
    pub(crate) async fn held(&self, resource: Uuid, month: BillingMonth) -> Result<Held, Failure> {
        let rows = self.waldur.usages(resource, month.first_day()).await?;
        let mut held = Held::default();
        for row in rows {
            if let Some((meant, total)) = Mark::read(&row.description) {
                if meant != month {
                    held.misfiled.insert(row.kind.clone(), meant);
                }
                held.over_plans.extend(total.map(|total| (row.kind.clone(), total)));
            }
            held.many_plans |= held.by_kind.contains_key(&row.kind);
            hold(&mut held.by_kind, row.kind, row.usage);
        }
        Ok(held)
    }

    pub(super) fn prove(&self, resource: Uuid, month: BillingMonth, amounts: &Amounts) {
        let now = self.clock.now();
        self.memory().usage.proven.insert((resource, month), (amounts.digest(), now));
    }

    /// A dated figure is not where it belongs. Either the call came to nothing, or the server ignored its date and filed it
    /// under its running month: then it is one that does not date usage, and that month's report sets its own figure right.
    async fn look_for_misfiled(&self, resource: Uuid, month: BillingMonth, running: BillingMonth) -> Result<(), Failure> {
        let held = self.held(resource, running).await?;
        if running != month && held.misfiled.values().any(|meant| *meant == month) {
            self.features.learn(Feature::DatedUsage, false);
            self.memory().usage.proven.retain(|(of, _), _| *of != resource);
            self.note_misfiled(resource, running, &held, &held.misfiled.keys().cloned().collect(), &BTreeSet::new());
        }
        Ok(())
    }

    /// Says which figures of a month were sent for another one: `wrong` ones are set right, `unknown` ones nobody can.
    fn note_misfiled(&self, resource: Uuid, month: BillingMonth, held: &Held, wrong: &BTreeSet<String>, unknown: &BTreeSet<String>) {
        let subject = format!("{} {month}", resource.simple());
        let misfiled = |kinds: &BTreeSet<String>| kinds.iter().filter(|kind| held.misfiled.contains_key(*kind)).cloned().collect();
        let (wrong, unknown): (BTreeSet<String>, BTreeSet<String>) = (misfiled(wrong), misfiled(unknown));
        if wrong.is_empty() && unknown.is_empty() {
            self.conditions.clear(MISFILED, subject);
            return;
        }
        let figure = |kind: &String| {
            let (value, meant) = (held.by_kind.get(kind).copied().unwrap_or_default(), held.misfiled.get(kind));
            format!("{kind} {value:.2}{}", meant.map(|meant| format!(" of {meant}")).unwrap_or_default())
        };
        let list = |kinds: &BTreeSet<String>| kinds.iter().map(figure).collect::<Vec<_>>().join(", ");
        let mut words = Vec::new();
        if !wrong.is_empty() {
            words.push(format!("{} is replaced by what the ledger shows with the next report of {month}", list(&wrong)));
        }
        if !unknown.is_empty() {
            words.push(format!("{} stays, since the gateway does not tell what that model used; set it by hand", list(&unknown)));
        }
        self.conditions.raise(
            MISFILED,
            subject,
            format!("{month}: Waldur ignored the date of usage and filed it under this month: {}", words.join("; ")),
        );
    }

    fn note_lower(&self, resource: Uuid, month: BillingMonth, decision: &Decision, ends: bool) {
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
        let cure = if ends {
            "the resource is being ended, and its final usage is not lowered; wait for its end".to_owned()
        } else {
            format!(
                "a figure in Waldur is not lowered by itself. Look with `usage audit --month {month}`, then `usage report --allow-decrease`"
            )
        };
        self.conditions.raise(NAME, subject, format!("{month}: {}; {cure}", figures.join("; ")));
    }

    /// Components that Waldur refused a while ago stay as they are.
    fn leave_out_refused(&self, offering: Uuid, resource: Uuid, decision: &mut Decision, held: &Held) {
        let mut memory = self.memory();
        forget_refusals(&mut memory.usage.refused, self.clock.now());
        let refused = |kind: &str| [offering, resource].iter().any(|of| memory.usage.refused.contains_key(&(*of, kind.to_owned())));
        let before = decision.send.len();
        decision.send.retain(|usage| !refused(&usage.kind));
        let same = |usage: &Usage| held.by_kind.get(&usage.kind) == Some(&usage.amount);
        if decision.send.len() < before && decision.send.iter().all(same) {
            decision.send.clear();
        }
    }

    /// Sends all components in one batch. One that Waldur refuses spoils the batch: it is found, named and left out.
    async fn send(&self, call: &Call<'_>, usages: Vec<Usage>) -> Result<Sending, Failure> {
        let mut left = usages;
        let mut bad: Vec<(Uuid, String)> = Vec::new();
        let mut daily = call.daily.to_vec();
        for _ in 0..MOST_TRIES {
            daily.retain(|day| left.iter().any(|usage| usage.kind == day.kind));
            let report = UsageReport { usages: &left, daily: &daily, date: call.date, descriptions: &call.marks(&left) };
            let error = match self.waldur.report_usage(call.resource, &report).await {
                Ok(()) => {
                    // It may have been refused an hour ago.
                    let taken = |of: &Uuid, kind: &String| {
                        [call.offering, call.resource].contains(of) && left.iter().any(|usage| usage.kind == *kind)
                    };
                    self.memory().usage.refused.retain(|(of, kind), _| !taken(of, kind));
                    self.remember_refused(bad);
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
                return if call.past { Ok(Sending::Closed(Failure::from(error).to_string())) } else { Err(later(error)) };
            }
            let of_batch = |kind: &String| left.iter().any(|usage| usage.kind == *kind);
            // What Waldur does not know is known for no resource of the offering; an amount is one resource's own.
            let mut named: Vec<(Uuid, String)> =
                error.invalid_components().into_iter().filter(of_batch).map(|kind| (call.offering, kind)).collect();
            let places = error.refused_usages();
            named.extend(places.into_iter().filter_map(|at| left.get(at).map(|usage| (call.resource, usage.kind.clone()))));
            if named.is_empty() && !daily.is_empty() && error.refuses_days() {
                tracing::warn!(resource = %call.resource.simple(), "Waldur refuses the days of the month, so only its total is reported: {error}");
                daily.clear();
                continue;
            }
            if named.is_empty() {
                named = self.find_refused(call, &left).await?.into_iter().map(|kind| (call.resource, kind)).collect();
            }
            left.retain(|usage| !named.iter().any(|(_, kind)| *kind == usage.kind));
            if named.is_empty() || left.is_empty() {
                bad.append(&mut named);
                self.remember_refused(bad);
                return Err(error.into());
            }
            bad.append(&mut named);
        }
        Err(Failure::Refused {
            peer: Peer::Waldur,
            message: format!("Waldur refuses the usage of resource {} component by component", call.resource.simple()),
        })
    }

    /// Which of a refused batch are refused by themselves, by halving.
    async fn find_refused(&self, call: &Call<'_>, usages: &[Usage]) -> Result<Vec<String>, Failure> {
        let halves = |batch: &[Usage]| {
            let (a, b) = batch.split_at(batch.len() / 2);
            [b.to_vec(), a.to_vec()]
        };
        let mut refused = Vec::new();
        // The whole batch was refused already.
        let mut open: Vec<Vec<Usage>> = if usages.len() > 1 { halves(usages).into() } else { Vec::new() };
        for _ in 0..MOST_TRIES {
            let Some(batch) = open.pop() else { break };
            let report = UsageReport { usages: &batch, daily: &[], date: call.date, descriptions: &call.marks(&batch) };
            match self.waldur.report_usage(call.resource, &report).await {
                Ok(()) => {}
                Err(error) if error.class() == Class::Refused && batch.len() > 1 => open.extend(halves(&batch)),
                Err(error) if error.class() == Class::Refused => refused.extend(batch.into_iter().map(|usage| usage.kind)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(refused)
    }

    fn remember_refused(&self, bad: Vec<(Uuid, String)>) {
        let now = self.clock.now();
        self.memory().usage.refused.extend(bad.into_iter().map(|subject| (subject, now)));
        self.note_refused();
    }

    /// Says which components Waldur refuses for a whole offering or for a resource, and ends what was said of others.
    pub(super) fn note_refused(&self) {
        const NAME: &str = "usage-component-refused";
        let mut by_subject: BTreeMap<Uuid, BTreeSet<String>> = BTreeMap::new();
        for (of, kind) in self.memory().usage.refused.keys() {
            by_subject.entry(*of).or_default().insert(kind.clone());
        }
        for (of, kinds) in &by_subject {
            let kinds = kinds.iter().cloned().collect::<Vec<_>>().join(", ");
            let message = if self.offering(*of).is_some() {
                format!(
                    "offering {} has no usage components {kinds} that Waldur takes; the other components are reported. Compare the components of the offering",
                    of.simple()
                )
            } else {
                format!("Waldur refuses the amounts of {kinds} for resource {}; its other components are reported", of.simple())
            };
            self.conditions.raise(NAME, of.simple(), message);
        }
        self.conditions.clear_others(NAME, &by_subject.into_keys().collect());
    }

    /// Components that were refused too long ago to leave them out of the next report.
    pub(super) fn forget_refused(&self) {
        forget_refusals(&mut self.memory().usage.refused, self.clock.now());
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
pub(crate) fn hold(held: &mut BTreeMap<String, Decimal>, kind: String, usage: Decimal) {
    let sum = held.entry(kind).or_insert(Decimal::ZERO);
    *sum = sum.saturating_add(usage);
}

/// One report of a resource and month, without its figures.
struct Call<'a> {
    offering: Uuid,
    resource: Uuid,
    daily: &'a [DailyUsage],
    date: Option<jiff::Timestamp>,
    mark: Option<Mark>,
    /// The month is over.
    past: bool,
}

impl Call<'_> {
    fn marks(&self, usages: &[Usage]) -> Vec<String> {
        self.mark.map(|mark| usages.iter().map(|usage| mark.on(usage)).collect()).unwrap_or_default()
    }
}

fn forget_refusals(refused: &mut HashMap<(Uuid, String), jiff::Timestamp>, now: jiff::Timestamp) {
    refused.retain(|_, at| *at <= now && now < after(*at, REFUSED_FOR));
}

/// What a server shows that adds what it is told to the figures of earlier plans.
fn doubled(totals: &[Usage], earlier: &BTreeMap<String, Decimal>) -> Vec<Usage> {
    let sum =
        |usage: &Usage| Usage { kind: usage.kind.clone(), amount: usage.amount + earlier.get(&usage.kind).copied().unwrap_or_default() };
    totals.iter().map(sum).collect()
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

fn changes(decision: &Decision, held: &Held) -> Vec<Change> {
    let change = |usage: &Usage| Change {
        kind: usage.kind.clone(),
        held: held.by_kind.get(&usage.kind).copied().unwrap_or_default(),
        amount: usage.amount,
    };
    decision.send.iter().map(change).filter(|change| change.held != change.amount).collect()
}

/// Changes as people read them.
#[must_use]
pub fn shown_changes(changes: &[Change]) -> String {
    if changes.is_empty() { "+0.00".into() } else { changes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ") }
}
