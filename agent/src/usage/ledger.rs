//! Reads the gateway's ledger, and what it takes to believe it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};
use litellm_client::{Counts, LogFilter};

use crate::agent::{Agent, Failure};
use crate::clock::after;
use crate::config::FailedCalls;
use crate::domain::component_key;
use crate::plan::{Ledger, Log, LoggedDay, Proven, Totals, Upstreams};

/// The log of calls must have the calls of a day by so long after its end.
const LOGGED_BY: SignedDuration = SignedDuration::from_mins(30);
/// A day that is over and of which the log lacks calls is read again after so long.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(3600);

/// Whose use is read.
pub(crate) struct Whose<'a> {
    /// The only teams that are asked for; all where none is named.
    pub(crate) only: &'a [&'a str],
    /// The teams that are billed.
    pub(crate) teams: &'a BTreeSet<String>,
    /// The models that are or were sold, by what their components begin with.
    pub(crate) sold: &'a BTreeMap<String, String>,
}

/// Which calls are looked for in the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Calls {
    /// Those that failed.
    Failed,
    /// Those to any of these models.
    To(BTreeSet<String>),
}

/// What was read of the log of calls, so that a day that is over is read once.
#[derive(Debug, Default)]
pub(crate) struct LogMemory {
    /// By team and day.
    read: HashMap<Calls, HashMap<(String, Date), Reading>>,
    /// Which public name had which upstream model.
    upstreams: Upstreams,
    /// Models that have gone whose calls since a day were looked for.
    looked_for: BTreeSet<(String, Date)>,
}

#[derive(Debug)]
struct Reading {
    day: Arc<LoggedDay>,
    /// What the ledger had of these calls then.
    ledger: Counts,
    at: Timestamp,
}

impl Agent {
    /// The rows of the days `from` to `to` (UTC, both included), and what of them adds up. Totals of today are read before
    /// and after the rows, those of other days after them. Where the ledger alone does not say what is billed, the log of
    /// calls is read for those days.
    pub(crate) async fn read_ledger(&self, whose: Whose<'_>, from: Date, to: Date) -> Result<Proven, Failure> {
        let today = self.clock.now().to_zoned(TimeZone::UTC).date();
        let to = to.min(today);
        let before = if to == today { self.gateway.daily_totals(whose.only, today, today).await? } else { None };
        let mut ledger = Ledger::default();
        self.gateway.daily_activity_each(whose.only, from, to, |day| ledger.take(day)).await?;
        let mut after = Totals::default();
        for (first, last) in ledger.spans(from, to) {
            match self.gateway.daily_totals(whose.only, first, last).await? {
                Some(days) => days.iter().for_each(|day| after.take(day)),
                // A release without totals: a second reading in their place.
                None => self.gateway.daily_activity_each(whose.only, first, last, |day| after.take(&day)).await.map(drop)?,
            }
        }
        let mut proven = ledger.prove(before.as_deref().map(Totals::of).as_ref(), Some(&after), today);
        let used = proven.models_of(whose.teams);
        if used.is_empty() {
            return Ok(proven);
        }
        let settled = settled(self.clock.now());
        self.look_at_upstreams(&whose, &used, from, to).await?;
        let mut groups: BTreeMap<BTreeSet<String>, BTreeSet<Date>> = BTreeMap::new();
        {
            let memory = self.memory();
            for date in from.series(1.day()).take_while(|date| *date <= to) {
                for group in memory.usage.log.upstreams.shared_on(date) {
                    groups.entry(group).or_default().insert(date);
                }
            }
        }
        for (group, dates) in groups {
            let mut days = proven.days_with(whose.teams, &group);
            days.retain(|(_, date), _| dates.contains(date));
            let log = self.logged(Calls::To(group.clone()), days, &whose, settled).await;
            proven.tell_apart(&group, &log, settled);
        }
        if self.config.usage.failed_calls == FailedCalls::Exclude {
            let log = self.logged(Calls::Failed, proven.days_with_failed(whose.teams), &whose, settled).await;
            proven.without_failed(&log, settled);
        }
        Ok(proven)
    }

    /// Notes which public name has which upstream model now, and what the log of calls says of names that have gone.
    async fn look_at_upstreams(&self, whose: &Whose<'_>, used: &BTreeSet<String>, from: Date, to: Date) -> Result<(), Failure> {
        let today = self.clock.now().to_zoned(TimeZone::UTC).date();
        let deployments = self.gateway.model_info().await?;
        let gone: Vec<String> = {
            let log = &mut self.memory().usage.log;
            let served = deployments.iter().map(|deployment| (deployment.model_name.as_str(), deployment.upstream_model.as_deref()));
            log.upstreams.look(served, today);
            // A component says less than the name of its model.
            let there: BTreeSet<String> = deployments.iter().map(|deployment| component_key(&deployment.model_name)).collect();
            let used = used.iter().map(|name| (component_key(name), name));
            let sold = whose.sold.iter().map(|(key, name)| (key.clone(), name));
            let gone: BTreeSet<&String> = used.chain(sold).filter(|(key, _)| !there.contains(key)).map(|(_, name)| name).collect();
            let unknown = gone.into_iter().filter(|name| !log.upstreams.knows(name, from));
            unknown.filter(|name| !log.looked_for.contains(&((*name).clone(), from))).cloned().collect()
        };
        for name in gone {
            let filter = LogFilter { team_id: whose.team(), model_group: Some(&name), failed: false };
            match self.gateway.latest_calls(filter, from, to).await {
                Ok(calls) => {
                    let log = &mut self.memory().usage.log;
                    for call in calls {
                        log.upstreams.was(&name, &call.upstream, call.started.to_zoned(TimeZone::UTC).date());
                    }
                    // Another team may have called it.
                    if whose.only.is_empty() {
                        log.looked_for.insert((name, from));
                    }
                }
                Err(error) => tracing::debug!(model = name, "the calls of a model that has gone cannot be looked for: {error}"),
            }
        }
        Ok(())
    }

    /// The log of calls of these teams on these days, for each of which it is said what the ledger has. A day that cannot be
    /// read is one that proves nothing.
    async fn logged(&self, calls: Calls, days: BTreeMap<(String, Date), Counts>, whose: &Whose<'_>, settled: Date) -> Log {
        let now = self.clock.now();
        let mut found = Log::new();
        let mut open: BTreeMap<Date, BTreeMap<String, Counts>> = BTreeMap::new();
        {
            let memory = self.memory();
            let read = memory.usage.log.read.get(&calls);
            for ((team, date), ledger) in days {
                let at = (team, date);
                let known = read.and_then(|read| read.get(&at));
                match known.filter(|known| known.ledger == ledger && known.serves(&calls, date < settled, now)) {
                    Some(known) => drop(found.insert(at, Arc::clone(&known.day))),
                    None => drop(open.entry(date).or_default().insert(at.0, ledger)),
                }
            }
        }
        let dates: Vec<Date> = open.keys().copied().collect();
        for run in dates.chunk_by(|a, b| a.tomorrow().is_ok_and(|next| next == *b)) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let read = self.read_log(&calls, *first, *last, whose).await;
            if let Err(error) = &read {
                tracing::warn!(%first, %last, "the gateway's log of calls cannot be read: {error}");
            }
            let memory = &mut self.memory().usage.log;
            for date in run {
                for (team, ledger) in open.remove(date).unwrap_or_default() {
                    let at = (team, *date);
                    let day = match &read {
                        Ok(read) => {
                            let day = Arc::new(read.get(&at).cloned().unwrap_or_default());
                            let reading = Reading { day: Arc::clone(&day), ledger, at: now };
                            memory.read.entry(calls.clone()).or_default().insert(at.clone(), reading);
                            day
                        }
                        Err(error) => Arc::new(LoggedDay::unread(error.to_string())),
                    };
                    found.insert(at, day);
                }
            }
        }
        found
    }

    async fn read_log(
        &self,
        calls: &Calls,
        first: Date,
        last: Date,
        whose: &Whose<'_>,
    ) -> Result<HashMap<(String, Date), LoggedDay>, litellm_client::Error> {
        let all = LogFilter { team_id: whose.team(), ..LogFilter::default() };
        let filters: Vec<LogFilter<'_>> = match calls {
            Calls::Failed => vec![LogFilter { failed: true, ..all }],
            Calls::To(models) => models.iter().map(|model| LogFilter { model_group: Some(model), ..all }).collect(),
        };
        let mut days: HashMap<(String, Date), LoggedDay> = HashMap::new();
        for filter in filters {
            let take = |call: litellm_client::LoggedCall| {
                if let Some(team) = call.team_id.as_ref().filter(|team| whose.teams.contains(*team)) {
                    let date = call.started.to_zoned(TimeZone::UTC).date();
                    days.entry((team.clone(), date)).or_default().take(&call);
                }
            };
            self.gateway.spend_logs(filter, first, last, take).await?;
        }
        Ok(days)
    }

    /// Days before this one are forgotten, with what was looked for then.
    pub(super) fn forget_logged(&self, before: Date) {
        let log = &mut self.memory().usage.log;
        log.read.retain(|_, read| {
            read.retain(|(_, date), _| *date >= before);
            !read.is_empty()
        });
        log.looked_for.retain(|(_, from)| *from >= before);
    }
}

impl Whose<'_> {
    fn team(&self) -> Option<&str> {
        if let [team] = self.only { Some(team) } else { None }
    }
}

impl Reading {
    /// Whether it need not be read again, the ledger being as it was.
    fn serves(&self, calls: &Calls, settled: bool, now: Timestamp) -> bool {
        let whole = match calls {
            Calls::Failed => self.day.has_failed(&self.ledger),
            Calls::To(_) => self.day.has_all(&self.ledger),
        };
        whole || (settled && self.at <= now && now < after(self.at, READ_AGAIN_AFTER))
    }
}

/// The first day of which the log of calls may still get some.
fn settled(now: Timestamp) -> Date {
    now.checked_sub(LOGGED_BY).unwrap_or(now).to_zoned(TimeZone::UTC).date()
}
