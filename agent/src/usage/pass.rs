//! The usage pass: the rows of all teams are read once, and every resource whose figures changed is reported.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use litellm_client::Counts;
use rust_decimal::Decimal;
use uuid::Uuid;
use waldur_client::{ComponentUsage, Resource, ResourceState};

use super::keys::KnownKeys;
use super::ledger::Whose;
use super::report::{How, Outcome, Seller, hold, shown_changes, takes_usage};
use crate::agent::{Agent, Failure};
use crate::clock::after;
use crate::domain::{BillingMonth, team_id};
use crate::features::Feature;
use crate::gate::Peer;
use crate::plan::{Amounts, Lower, Proven, TeamUse, Withheld, component_amounts, decide};

/// From so many resources on, Waldur's figures are read by page for the whole offering instead of one by one.
const IN_BULK: usize = 5;
/// Resources reported at the same time.
const AT_ONCE: usize = 8;
/// What a reading showed is believed for so long; people can edit figures in Waldur.
const BELIEVED_FOR: Duration = Duration::from_secs(3600);

/// The states of resources that can have usage to report.
const STATES: [ResourceState; 4] = [ResourceState::Ok, ResourceState::Updating, ResourceState::Terminating, ResourceState::Erred];

/// Conditions with a resource and a month as their subject.
const BY_MONTH: [&str; 6] =
    ["usage-lower", "usage-unreported", "usage-waits", "usage-refused", "usage-without-component", "usage-misfiled"];

/// Conditions that say what keeps the usage of a resource back, and so nothing once it has ended: what was not billed by then is
/// noted on it. Their subjects begin with the resource.
const OF_THE_LIVING: [&str; 6] =
    ["usage-lower", "usage-waits", "usage-refused", "usage-without-component", "usage-not-shown", "usage-by-key-unreported"];

/// What a pass is to do.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// How to report.
    pub how: How,
    /// Only this resource.
    pub only: Option<Uuid>,
    /// Only these months; else the running one, and the one before while late rows can come.
    pub months: Option<Vec<BillingMonth>>,
    /// How far it has come, for whoever watches.
    pub progress: Option<Arc<Progress>>,
    /// The agent's own beat: what it finds is remembered, and a month that ended unseen is looked at once.
    pub beat: bool,
}

/// How far a pass has come, in resources and months that differ from what Waldur holds.
#[derive(Debug, Default)]
pub struct Progress {
    /// Looked at.
    pub done: AtomicUsize,
    /// Known so far.
    pub of: AtomicUsize,
}

/// One resource and month of a pass.
#[derive(Clone, Debug)]
pub struct Line {
    /// The resource.
    pub resource: Uuid,
    /// Its short name.
    pub slug: String,
    /// The month.
    pub month: BillingMonth,
    /// What became of it.
    pub outcome: Result<Outcome, Failure>,
    /// Figures that stay higher in Waldur than the ledger has them.
    pub lower: Vec<Lower>,
}

/// What a pass did.
#[derive(Clone, Debug, Default)]
pub struct PassReport {
    /// The months it covered, oldest first.
    pub months: Vec<BillingMonth>,
    /// Ledger parts read.
    pub rows: usize,
    /// Resources that were looked at.
    pub resources: usize,
    /// What differed, by resource and month; what was equal is only counted.
    pub lines: Vec<Line>,
    /// What of the ledger did not add up, or is not borne out by the log of calls although it should be by now.
    pub withheld: Vec<Withheld>,
    /// What waits for the log of calls.
    pub waiting: usize,
    /// Models on one upstream model that the log of calls does not tell apart.
    pub merged: Vec<Withheld>,
    /// Use of keys whose team is lost.
    pub unattributed: Counts,
    /// Teams with rows that are no resource of ours.
    pub foreign: usize,
    /// Midnight came while the ledger was read: nothing was reported.
    pub discarded: bool,
}

impl PassReport {
    /// Resources reported.
    #[must_use]
    pub fn sent(&self) -> usize {
        self.lines.iter().filter(|line| matches!(line.outcome, Ok(Outcome::Sent(_)))).count()
    }

    /// Whether all of the ledger was used, each model for itself.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.withheld.is_empty() && self.merged.is_empty() && self.waiting == 0 && !self.discarded
    }

    /// Resources whose report failed.
    pub fn failures(&self) -> impl Iterator<Item = (&Line, &Failure)> {
        self.lines.iter().filter_map(|line| Some((line, line.outcome.as_ref().err()?)))
    }
}

/// A resource whose figures of a month Waldur may not hold.
struct Due {
    resource: Arc<Resource>,
    amounts: Arc<Amounts>,
}

/// What reporting the resources of an offering for a month rests on.
struct Reading<'a> {
    seller: &'a Seller,
    month: BillingMonth,
    ledger: &'a Proven,
    /// When the pass began.
    began: Timestamp,
    keys: Option<&'a KnownKeys>,
    how: How,
}

impl Reading<'_> {
    /// All that a resource used. It takes more room than ten thousand of them may, so that it is put together when it is needed.
    fn used(&self, resource: Uuid) -> TeamUse {
        self.ledger.team(&team_id(resource), self.month.first_day(), self.month.last_day())
    }

    fn amounts(&self, resource: Uuid) -> Arc<Amounts> {
        let used = self.ledger.totals(&team_id(resource), self.month.first_day(), self.month.last_day());
        component_amounts(&used.models, &self.seller.usable, self.seller.token_unit, &used.untold, used.partial).into()
    }
}

/// What a pass keeps of a resource.
fn kept(mut resource: Resource) -> Arc<Resource> {
    let maps = [&mut resource.options, &mut resource.attributes, &mut resource.backend_metadata];
    maps.into_iter().for_each(|map| drop(std::mem::take(map)));
    resource.limits.clear();
    (resource.endpoints, resource.report) = (Vec::new(), Vec::new());
    Arc::new(resource)
}

impl Agent {
    /// One beat of the usage loop.
    pub async fn usage_beat(&self) -> Result<PassReport, Failure> {
        const UNREAD: &str = "usage-unread";
        let began = self.clock.now();
        let result = self.usage_pass(&Pass { beat: true, ..Pass::default() }).await;
        let outcome = match &result {
            Ok(report) if report.discarded => "discarded",
            Ok(report) if report.failures().next().is_some() => "partly",
            Ok(_) => "done",
            Err(_) => "failed",
        };
        metrics::counter!("llm_access_usage_passes_total", "outcome" => outcome).increment(1);
        match &result {
            Ok(report) => {
                self.conditions.clear(UNREAD, "");
                if !report.discarded {
                    metrics::gauge!("llm_access_usage_last_pass_timestamp_seconds").set(crate::http::seconds(began));
                    metrics::gauge!("llm_access_usage_rows").set(crate::orders::count(report.rows));
                    metrics::gauge!("llm_access_usage_behind").set(crate::orders::count(report.lines.len() - report.sent()));
                }
                if report.sent() > 0 {
                    tracing::info!(resources = report.resources, rows = report.rows, reported = report.sent(), "usage pass");
                } else {
                    tracing::debug!(resources = report.resources, rows = report.rows, "usage pass: nothing to report");
                }
            }
            Err(failure) => {
                self.note_pass_failure(failure);
                self.conditions.raise(UNREAD, "", format!("usage could not be read, so nothing is reported: {failure}"));
            }
        }
        self.progress.ended(
            "usage",
            match &result {
                Ok(report) if report.discarded => "midnight came while the ledger was read; nothing was reported".to_owned(),
                Ok(report) => {
                    format!(
                        "{} resources, {} rows read, {} reported, {} behind",
                        report.resources,
                        report.rows,
                        report.sent(),
                        report.lines.len() - report.sent()
                    )
                }
                Err(failure) => format!("nothing was reported: {failure}"),
            },
        );
        result
    }

    /// Reads the ledger once and reports every resource whose figures Waldur does not hold. One month is chosen at the
    /// start for reading and writing; a pass over which the month ends reports nothing more.
    ///
    /// # Errors
    /// What cannot be read as a whole. What fails for single resources is in the report.
    pub async fn usage_pass(&self, pass: &Pass) -> Result<PassReport, Failure> {
        let now = self.clock.now();
        let current = BillingMonth::of(now);
        let mut months = pass.months.clone().unwrap_or_else(|| self.open_months(now));
        if pass.beat && !months.contains(&current.previous()) && self.must_look_back(now) {
            months.insert(0, current.previous());
        }
        let mut report = PassReport { months: months.clone(), ..PassReport::default() };
        let (Some(first), Some(last)) = (months.iter().min(), months.iter().max()) else { return Ok(report) };
        let mut sellers = Vec::new();
        for offering in &self.config.offerings {
            let mut resources = self.waldur.resources_as(offering.uuid, &STATES, kept).await?;
            // Another agent's resources are that agent's to bill.
            resources
                .retain(|resource| resource.backend_id == team_id(resource.uuid) && pass.only.is_none_or(|only| only == resource.uuid));
            if !resources.is_empty() {
                report.resources += resources.len();
                sellers.push((self.seller(offering.uuid).await?, resources));
            }
        }
        self.note_answer(Peer::Waldur);
        if pass.beat {
            let listed: HashSet<Uuid> = sellers.iter().flat_map(|(_, resources)| resources).map(|resource| resource.uuid).collect();
            self.forget_ended(&listed);
        }
        if sellers.is_empty() {
            if pass.beat {
                self.close_months(now, &report).await;
            }
            return Ok(report);
        }
        let team = pass.only.map(team_id);
        let teams: Vec<&str> = team.as_deref().into_iter().collect();
        let ours: BTreeSet<String> = sellers.iter().flat_map(|(_, resources)| resources).map(|resource| team_id(resource.uuid)).collect();
        let sold = sellers.iter().flat_map(|(seller, _)| seller.sold.clone()).collect();
        let whose = Whose { only: &teams, teams: &ours, sold: &sold };
        let ledger = self.read_ledger(whose, first.first_day(), last.last_day()).await?;
        self.note_answer(Peer::Gateway);
        report.rows = ledger.rows;
        report.withheld = ledger.withheld.iter().chain(&ledger.unproven).cloned().collect();
        report.waiting = ledger.waiting.len();
        report.merged.clone_from(&ledger.merged);
        report.unattributed = ledger.unattributed;
        report.foreign = ledger.teams().filter(|team| !ours.contains(*team)).count();
        let whole = pass.only.is_none() && pass.months.is_none();
        if whole {
            self.note_ledger(&report);
            self.forget_months(&months);
            self.forget_logged(first.first_day());
        }
        self.forget_refused();
        for (seller, resources) in &sellers {
            // Read when the first one is needed; `Some(None)` where they are not told of.
            let mut keys: Option<Option<KnownKeys>> = None;
            for month in &months {
                if BillingMonth::of(self.clock.now()) != current {
                    tracing::info!("the month ended while usage was read; the next pass starts anew");
                    report.discarded = true;
                    return Ok(report);
                }
                let mut reading = Reading { seller, month: *month, ledger: &ledger, began: now, keys: None, how: pass.how };
                let due = self.unproven_of(&reading, resources);
                if due.is_empty() {
                    continue;
                }
                if keys.is_none() {
                    keys = Some(self.keys_to_report(seller).await.unwrap_or_else(|failure| {
                        tracing::warn!("the keys that Waldur knows cannot be listed, so usage by key waits: {failure}");
                        None
                    }));
                }
                reading.keys = keys.as_ref().and_then(Option::as_ref);
                let (due, equal) = self.differing(&reading, due, pass.beat).await?;
                if !pass.how.dry_run {
                    // A process before this one may have ended between the two reports.
                    for resource in equal.into_iter().filter(|resource| takes_usage(&resource.state)) {
                        self.try_keys(seller, resource.uuid, *month, &reading.used(resource.uuid), reading.keys).await;
                    }
                }
                // Whether the server dates usage shows with the first figure of a past month; the others wait for it.
                let sure = *month == current || self.features.known(Feature::DatedUsage) == Some(true);
                let at_once = if sure { AT_ONCE } else { 1 };
                if let Some(progress) = &pass.progress {
                    progress.of.fetch_add(due.len(), Ordering::Relaxed);
                }
                let lines: Vec<Option<Line>> = futures::stream::iter(due)
                    .map(|due| async {
                        let line = self.report_due(&reading, due).await;
                        if let Some(progress) = &pass.progress {
                            progress.done.fetch_add(1, Ordering::Relaxed);
                        }
                        line
                    })
                    .buffer_unordered(at_once)
                    .collect()
                    .await;
                report.lines.extend(lines.into_iter().flatten());
            }
        }
        report.lines.sort_by_key(|line| (line.month, line.resource));
        if pass.beat {
            self.note_refused();
            self.close_months(now, &report).await;
        }
        Ok(report)
    }

    /// The resources whose figures Waldur was not seen to hold.
    fn unproven_of(&self, reading: &Reading<'_>, resources: &[Arc<Resource>]) -> Vec<Due> {
        let believes = !reading.how.dry_run && !reading.how.allow_decrease;
        let due = resources.iter().filter_map(|resource| {
            let amounts = reading.amounts(resource.uuid);
            let proven = believes && self.is_proven(resource.uuid, reading.month, &amounts);
            (!proven).then(|| Due { resource: Arc::clone(resource), amounts })
        });
        due.collect()
    }

    /// Sets apart the resources of which Waldur holds everything already, by one reading for all where there are many. What it
    /// does not hold is owed from here on, and all of it where that cannot be read.
    async fn differing(&self, reading: &Reading<'_>, due: Vec<Due>, owing: bool) -> Result<(Vec<Due>, Vec<Arc<Resource>>), Failure> {
        let (seller, month) = (reading.seller, reading.month);
        let owe = |due: &Due| {
            if owing {
                self.owe(due.resource.uuid, month, &due.amounts);
            }
        };
        if due.len() < IN_BULK {
            due.iter().for_each(owe);
            return Ok((due, Vec::new()));
        }
        let figure = |row: ComponentUsage| Some((row.resource?, row.kind, row.usage));
        let rows = match self.waldur.usages_of_offering_as(seller.offering, month.first_day(), figure).await {
            Ok(rows) => rows,
            Err(error) => {
                due.iter().for_each(owe);
                return Err(error.into());
            }
        };
        let mut held: HashMap<Uuid, BTreeMap<String, Decimal>> = HashMap::new();
        for (resource, kind, usage) in rows {
            hold(held.entry(resource).or_default(), kind, usage);
        }
        let (mut differ, mut equal) = (Vec::new(), Vec::new());
        for due in due {
            let held = held.remove(&due.resource.uuid).unwrap_or_default();
            let decision = decide(&due.amounts, &held, &seller.usable, reading.how.allow_decrease);
            if decision.send.is_empty() && decision.lower.is_empty() && due.amounts.homeless.is_empty() {
                self.prove(due.resource.uuid, month, &due.amounts);
                self.paid(due.resource.uuid, month, None);
                self.note_line(due.resource.uuid, month, &due.amounts, &Ok(Outcome::Equal));
                equal.push(due.resource);
            } else {
                owe(&due);
                differ.push(due);
            }
        }
        Ok((differ, equal))
    }

    async fn report_due(&self, reading: &Reading<'_>, due: Due) -> Option<Line> {
        let Reading { seller, month, began, keys, how, .. } = *reading;
        let Due { resource, amounts } = due;
        let id = resource.uuid;
        // Waldur files under its own now: a report that was read in one month is not sent in another. And one peer that is
        // down need not fail once per resource.
        if BillingMonth::of(self.clock.now()) != BillingMonth::of(began) || self.gates.closed().contains(&Peer::Waldur) {
            return None;
        }
        // Somebody works on it, maybe its final usage; the next pass looks again.
        let _busy = self.schedule.take(id)?;
        // It may have ended meanwhile, and then this is an older reading than its final usage.
        if self.memory().usage.finals.get(&id).is_some_and(|at| *at >= began) {
            return None;
        }
        let used = reading.used(id);
        let reported = async {
            let reported = self.report(seller, &resource, month, &amounts, &used.days, how).await?;
            if !how.dry_run && takes_usage(&resource.state) {
                self.try_keys(seller, id, month, &used, keys).await;
            }
            Ok(reported)
        };
        let (outcome, lower) = match reported.await {
            Ok(reported) => (Ok(reported.outcome), reported.lower),
            Err(failure) => (Err(failure), Vec::new()),
        };
        self.note_line(id, month, &amounts, &outcome);
        let worth_telling = !matches!(outcome, Ok(Outcome::Equal)) || !lower.is_empty();
        worth_telling.then(|| Line { resource: id, slug: resource.slug.clone(), month, outcome, lower })
    }

    /// Usage by key is for people to look at; one that cannot be reported holds no bill up and is tried again in the next pass.
    pub(super) async fn try_keys(&self, seller: &Seller, id: Uuid, month: BillingMonth, used: &TeamUse, keys: Option<&KnownKeys>) {
        const NAME: &str = "usage-by-key-unreported";
        match self.report_keys(seller, id, month, used, keys).await {
            Ok(()) => self.conditions.clear(NAME, id.simple()),
            Err(failure) => {
                self.memory().usage.proven.remove(&(id, month));
                self.conditions.raise(NAME, id.simple(), format!("the usage of single keys of {month} cannot be reported yet: {failure}"));
            }
        }
    }

    fn note_line(&self, id: Uuid, month: BillingMonth, amounts: &Amounts, outcome: &Result<Outcome, Failure>) {
        let subject = format!("{} {month}", id.simple());
        if amounts.homeless.is_empty() {
            self.conditions.clear("usage-without-component", &subject);
        } else {
            self.conditions.raise("usage-without-component", &subject, format!("usage of {} has no component in the offering and is not billed; add the components, or take the models from the gateway", amounts.homeless.join(", ")));
        }
        let mut still: Vec<&'static str> = Vec::new();
        match outcome {
            Ok(Outcome::State(state)) => {
                still.push("usage-waits");
                self.conditions.raise(
                    "usage-waits",
                    &subject,
                    format!("Waldur takes no usage of a resource that is {state}; it is reported when the resource is OK again"),
                );
            }
            Ok(Outcome::Waits(_)) => {
                still.push("usage-waits");
                self.conditions.raise(
                    "usage-waits",
                    &subject,
                    "this Waldur files usage under its own clock, and a month's end is near or its clock and ours disagree about the month; it is reported after that",
                );
            }
            Ok(Outcome::Closed { why, unsent }) => {
                still.push("usage-unreported");
                let late = shown_changes(unsent);
                self.conditions.raise(
                    "usage-unreported",
                    &subject,
                    format!("late rows of {month} are not sent: {}: {late}; {why}", id.simple()),
                );
                // Nothing will change about it unless the ledger does.
                self.prove(id, month, amounts);
            }
            Err(failure) => {
                // A right that usage needs is not missed by orders.
                self.note_pass_failure(failure);
                if let Failure::Refused { message, .. } | Failure::Forbidden { message, .. } = failure {
                    still.push("usage-refused");
                    self.conditions.raise("usage-refused", &subject, format!("Waldur refuses the usage of {month}: {message}"));
                }
                tracing::warn!(resource = %id.simple(), %month, "usage could not be reported yet: {failure}");
            }
            Ok(_) => {}
        }
        for name in ["usage-waits", "usage-unreported", "usage-refused"] {
            if !still.contains(&name) && outcome.is_ok() {
                self.conditions.clear(name, &subject);
            }
        }
    }

    /// What is wrong with the ledger as a whole.
    fn note_ledger(&self, report: &PassReport) {
        let withheld = &report.withheld;
        metrics::gauge!("llm_access_usage_withheld").set(crate::orders::count(withheld.len()));
        if withheld.is_empty() {
            self.conditions.clear("usage-withheld", "");
        } else {
            let message = format!("parts of the gateway's ledger do not add up and are not reported until they do: {}", some_of(withheld));
            self.conditions.raise("usage-withheld", "", message);
        }
        const SHARED: &str = "usage-shared-upstream";
        if report.merged.is_empty() {
            self.conditions.clear(SHARED, "");
        } else {
            let message = format!(
                "models share one upstream model, so that the gateway's ledger has their use under whichever was called first, and its log of calls does not tell them apart; their own figures leave it out, aggregate ones have it: {}. Give each an upstream name of its own, and see that the gateway keeps its log for the whole month",
                some_of(&report.merged)
            );
            self.conditions.raise(SHARED, "", message);
        }
        let lost = &report.unattributed;
        metrics::gauge!("llm_access_usage_unattributed_tokens").set(tokens(lost));
        metrics::gauge!("llm_access_usage_foreign_teams").set(crate::orders::count(report.foreign));
        if lost.prompt_tokens == 0 && lost.completion_tokens == 0 && lost.spend.is_zero() {
            self.conditions.clear("usage-unattributed", "");
        } else {
            let message = format!(
                "the gateway no longer knows the team of keys that used {} + {} tokens, {} spend; it is on nobody's bill",
                lost.prompt_tokens,
                lost.completion_tokens,
                lost.spend.normalize()
            );
            self.conditions.raise("usage-unattributed", "", message);
        }
    }

    fn is_proven(&self, resource: Uuid, month: BillingMonth, amounts: &Amounts) -> bool {
        let now = self.clock.now();
        let memory = self.memory();
        memory
            .usage
            .proven
            .get(&(resource, month))
            .is_some_and(|(proven, at)| *at <= now && now < after(*at, BELIEVED_FOR) && *proven == amounts.digest())
    }

    /// Ends what was said of resources that have none to report any more.
    fn forget_ended(&self, listed: &HashSet<Uuid>) {
        let ended = |subject: &str| {
            let resource = subject.split(' ').next().and_then(|id| Uuid::parse_str(id).ok());
            resource.is_some_and(|id| !listed.contains(&id))
        };
        for (name, subject, _) in self.conditions.all() {
            if OF_THE_LIVING.contains(&name) && ended(&subject) {
                self.conditions.clear(name, subject);
            }
        }
    }

    /// Months that are over and done with are forgotten, with what was said about them.
    fn forget_months(&self, months: &[BillingMonth]) {
        let mut memory = self.memory();
        memory.usage.proven.retain(|(_, month), _| months.contains(month));
        memory.usage.closed.retain(|(_, month), _| months.contains(month));
        memory.usage.keys.retain(|(_, month), _| months.contains(month));
        memory.usage.plans.retain(|_, plans| plans.is_of(months));
        memory.usage.unbilled.retain(|(_, month)| months.contains(month));
        memory.usage.sending.retain(|(_, month)| months.contains(month));
        let now = self.clock.now();
        memory.usage.finals.retain(|_, at| now < after(*at, BELIEVED_FOR));
        drop(memory);
        for (name, subject, _) in self.conditions.all() {
            let over = |month: &str| month.parse::<BillingMonth>().is_ok_and(|month| !months.contains(&month));
            if BY_MONTH.contains(&name) && subject.rsplit(' ').next().is_some_and(over) {
                self.conditions.clear(name, subject);
            }
        }
    }
}

/// The first few of many.
fn some_of(all: &[Withheld]) -> String {
    let some: Vec<String> = all.iter().take(3).map(ToString::to_string).collect();
    let more = if all.len() > 3 { format!(" (and {} more)", all.len() - 3) } else { String::new() };
    format!("{}{more}", some.join("; "))
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float, and nothing is billed by it")]
fn tokens(counts: &Counts) -> f64 {
    counts.prompt_tokens.saturating_add(counts.completion_tokens) as f64
}
