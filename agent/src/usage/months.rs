//! Months that end: what of them Waldur did not take is said for as long as somebody can bill it by hand, and a process that
//! was down while a month ended looks at it once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rust_decimal::Decimal;
use uuid::Uuid;
use waldur_client::Usage;

use super::pass::{Line, Pass, PassReport};
use super::report::{How, Outcome};
use crate::agent::{Agent, Failure};
use crate::clock::after;
use crate::domain::BillingMonth;
use crate::gate::Peer;
use crate::plan::{Amounts, Withheld};

/// What a month's figures belong to: a resource, or (`None`) the ledger as a whole.
pub(super) type Subject = (Option<Uuid>, BillingMonth);

/// A month that is over and not wholly reported.
const NAME: &str = "usage-month-unreported";
/// Whether somebody has reported such a month by hand is looked at this often, for so many of them in one pass.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);
const AT_ONCE: usize = 20;

/// Figures that Waldur does not hold yet.
#[derive(Clone, Debug)]
pub(super) struct Owed {
    /// What the ledger shows of a resource.
    amounts: Arc<Amounts>,
    /// Which parts of the ledger as a whole did not add up.
    parts: String,
    /// When Waldur was last asked about it.
    asked: Timestamp,
}

impl Owed {
    /// What it is, for people.
    fn told(&self) -> String {
        let figures = self.amounts.by_kind.iter().map(|(kind, amount)| format!("{kind} {amount:.2}"));
        let homeless = self.amounts.homeless.iter().map(|model| format!("{model}, which has no component"));
        let parts = (!self.parts.is_empty()).then(|| self.parts.clone());
        figures.chain(homeless).chain(parts).collect::<Vec<_>>().join(", ")
    }
}

impl Agent {
    /// The months of the agent's own pass, oldest first: the running one, and the one before while late rows can come.
    pub(super) fn open_months(&self, now: Timestamp) -> Vec<BillingMonth> {
        let current = BillingMonth::of(now);
        let late = Duration::from_secs(86_400).saturating_mul(self.config.usage.late_days);
        let before = (now < after(current.start(), late)).then(|| current.previous());
        before.into_iter().chain([current]).collect()
    }

    /// Whether this process has not looked at the month before since it ended: it, or another, may have been down then.
    pub(super) fn must_look_back(&self, now: Timestamp) -> bool {
        self.memory().usage.looked != Some(BillingMonth::of(now).previous())
    }

    /// Waldur may not hold these figures.
    pub(super) fn owe(&self, resource: Uuid, month: BillingMonth, amounts: &Arc<Amounts>) {
        let key = (Some(resource), month);
        let asked = self.clock.now();
        let mut memory = self.memory();
        if amounts.by_kind.is_empty() && amounts.homeless.is_empty() {
            memory.usage.owed.remove(&key);
        } else {
            memory.usage.owed.insert(key, Owed { amounts: Arc::clone(amounts), parts: String::new(), asked });
        }
    }

    /// Waldur was seen to hold them: all, or `only` these.
    pub(super) fn paid(&self, resource: Uuid, month: BillingMonth, only: Option<&[Usage]>) {
        let key = (Some(resource), month);
        let mut memory = self.memory();
        match (only, memory.usage.owed.get_mut(&key)) {
            (Some(only), Some(owed)) => {
                Arc::make_mut(&mut owed.amounts).by_kind.retain(|kind, _| !only.iter().any(|usage| usage.kind == *kind));
            }
            _ => drop(memory.usage.owed.remove(&key)),
        }
        // Also where the answer to the call was lost.
        if memory.usage.sending.remove(&(resource, month)) {
            metrics::counter!("llm_access_usage_reported_total").increment(1);
        }
    }

    /// Ends what cannot be reported any more with a last alarm, and one that somebody reported by hand.
    pub(super) async fn close_months(&self, now: Timestamp, report: &PassReport) {
        let running = BillingMonth::of(now);
        let mut open = self.open_months(now);
        // A look back that came to nothing is done again.
        let again =
            |line: &Line| line.month < running && line.outcome.as_ref().is_err_and(|failure| !matches!(failure, Failure::Refused { .. }));
        let looked = !self.gates.closed().contains(&Peer::Waldur) && !report.lines.iter().any(again);
        if looked {
            if report.months.contains(&running.previous()) {
                self.memory().usage.looked = Some(running.previous());
            }
        } else {
            open.push(running.previous());
        }
        self.owe_withheld(now, report);
        {
            let mut memory = self.memory();
            let usage = &mut memory.usage;
            let over: Vec<Subject> = usage.owed.keys().filter(|(_, month)| !open.contains(month)).copied().collect();
            for subject in over {
                if let Some(owed) = usage.owed.remove(&subject) {
                    usage.lost.insert(subject, owed);
                }
            }
            // The accounts of a month are closed when the next is over.
            usage.lost.retain(|(_, month), _| *month >= running.previous());
        }
        self.ask_about_lost(now).await;
        let lost: Vec<(Subject, String)> = self.memory().usage.lost.iter().map(|(subject, owed)| (*subject, owed.told())).collect();
        metrics::gauge!("llm_access_usage_months_unreported").set(crate::orders::count(lost.len()));
        let mut still = Vec::new();
        for ((resource, month), told) in lost {
            let subject = subject_of(resource, month);
            let message = match resource {
                Some(id) => format!(
                    "{month} is over, and Waldur does not hold all that resource {} used: the ledger shows {told}. Look with `usage audit --month {month}`; `usage backfill --from {month} --to {month} --resource {} --apply` sends it where Waldur still takes it, else bill it by hand",
                    id.simple(),
                    id.simple()
                ),
                None => format!(
                    "{month} is over, and parts of the gateway's ledger never added up or were not told apart, so that they are on nobody's bill: {told}. Look with `usage audit --month {month}`; once it adds up, `usage backfill --from {month} --to {month} --apply`"
                ),
            };
            self.conditions.raise(NAME, &subject, message);
            still.push(subject);
        }
        for (name, subject, _) in self.conditions.all() {
            if name == NAME && !still.contains(&subject) {
                self.conditions.clear(NAME, subject);
            }
        }
    }

    /// Whether Waldur does not hold some usage yet, as far as a process has to find out that has made no pass so far.
    pub(crate) async fn owes_usage(&self) -> bool {
        if self.memory().usage.looked.is_some() {
            return false;
        }
        let how = How { dry_run: true, ..How::default() };
        match self.usage_pass(&Pass { how, ..Pass::default() }).await {
            Ok(report) => {
                let owed = |line: &Line| matches!(line.outcome, Err(_) | Ok(Outcome::Would(_)));
                report.discarded || !report.withheld.is_empty() || report.lines.iter().any(owed)
            }
            Err(failure) => {
                tracing::debug!("whether usage is owed cannot be told: {failure}");
                true
            }
        }
    }

    /// Parts of the ledger that did not add up in this pass, or were not told apart, by month.
    fn owe_withheld(&self, now: Timestamp, report: &PassReport) {
        let mut memory = self.memory();
        for month in &report.months {
            let of_month = |part: &&Withheld| BillingMonth::of_date(part.date) == *month;
            let parts: Vec<String> =
                report.withheld.iter().chain(&report.merged).filter(of_month).take(3).map(ToString::to_string).collect();
            if parts.is_empty() {
                memory.usage.owed.remove(&(None, *month));
            } else {
                let owed = Owed { amounts: Arc::default(), parts: parts.join("; "), asked: now };
                memory.usage.owed.insert((None, *month), owed);
            }
        }
    }

    /// Somebody may have filled a month in by hand.
    async fn ask_about_lost(&self, now: Timestamp) {
        let due: Vec<(Uuid, BillingMonth, BTreeMap<String, Decimal>)> = {
            let memory = self.memory();
            let of_resources = memory.usage.lost.iter().filter_map(|((of, month), owed)| Some(((*of)?, *month, owed)));
            let due = of_resources.filter(|(_, _, owed)| !owed.amounts.by_kind.is_empty() && now >= after(owed.asked, LOOK_AGAIN));
            due.take(AT_ONCE).map(|(of, month, owed)| (of, month, owed.amounts.by_kind.clone())).collect()
        };
        for (resource, month, amounts) in due {
            let Ok(held) = self.held(resource, month).await else { return };
            let holds = |(kind, amount): (&String, &Decimal)| held.by_kind.get(kind).is_some_and(|held| held >= amount);
            let filled = amounts.iter().all(holds);
            let mut memory = self.memory();
            let subject = (Some(resource), month);
            if filled {
                memory.usage.lost.remove(&subject);
            } else if let Some(owed) = memory.usage.lost.get_mut(&subject) {
                owed.asked = now;
            }
        }
    }
}

fn subject_of(resource: Option<Uuid>, month: BillingMonth) -> String {
    match resource {
        Some(id) => format!("{} {month}", id.simple()),
        None => format!("ledger {month}"),
    }
}
