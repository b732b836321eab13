//! Waldur, the daily rows and the log of calls side by side. A difference is explained only where there is evidence for one
//! of a few reasons; anything else is for a person.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};
use litellm_client::{Counts, LogFilter, LoggedCall};
use rust_decimal::Decimal;
use uuid::Uuid;
use waldur_client::{Resource, ResourceState};

use super::ledger::Whose;
use super::report::hold;
use crate::agent::{Agent, Failure};
use crate::config::FailedCalls;
use crate::domain::{BillingMonth, Direction, team_id, usage_component};
use crate::plan::{ModelTotals, TeamUse, Withheld, component_amounts};

/// Rows this young may not have reached every place yet.
const YOUNG: SignedDuration = SignedDuration::from_mins(30);

/// Why figures differ, with what shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Calls younger than half an hour make up for it.
    Lag(Decimal),
    /// The daily rows and the log have different calls: the gateway was killed before it had written both, or keeps one of
    /// them shorter. How much more the log has.
    LostFlush(Decimal),
    /// So much is of this model or of another on the same upstream model: the daily rows have it under whichever was called
    /// first, and the log does not tell.
    SharedUpstream(Decimal),
    /// Calls after the last report of a resource that has ended.
    AfterTermination(Decimal),
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lag(exact) => write!(f, "lag: {} in calls of the last 30 minutes", exact.normalize()),
            Self::LostFlush(more) if more.is_sign_negative() => {
                write!(f, "lost flush: the log misses {} that the daily rows have", more.abs().normalize())
            }
            Self::LostFlush(more) => write!(f, "lost flush: the daily rows miss {} that the log has", more.normalize()),
            Self::SharedUpstream(untold) => write!(
                f,
                "shared upstream: the daily rows have {} under this name that may be another's, and the log does not tell",
                untold.normalize()
            ),
            Self::AfterTermination(exact) => write!(f, "after termination: {} in calls after the last report", exact.normalize()),
        }
    }
}

/// One component of one resource.
#[derive(Clone, Debug)]
pub struct AuditRow {
    /// The resource.
    pub resource: Uuid,
    /// Its short name.
    pub slug: String,
    /// The component type, or what it would be.
    pub kind: String,
    /// The model it counts; `None` for all.
    pub model: Option<String>,
    /// What Waldur holds; `None` where the offering has no such component.
    pub waldur: Option<Decimal>,
    /// What the daily rows say, as an amount.
    pub daily: Decimal,
    /// What the log says, as an amount.
    pub log: Decimal,
    /// The daily rows to the token, or the exact spend.
    pub daily_exact: Decimal,
    /// The log to the token, or the exact spend.
    pub log_exact: Decimal,
    /// Of which in failed calls, by the gateway's estimate.
    pub estimated: Decimal,
    /// What explains a difference.
    pub reasons: Vec<Reason>,
    /// A difference that nothing explains.
    pub unexplained: bool,
}

impl AuditRow {
    /// Whether any two figures differ.
    #[must_use]
    pub fn differs(&self) -> bool {
        self.waldur.is_some_and(|waldur| waldur != self.daily) || !same(self.daily_exact, self.log_exact)
    }
}

/// A month side by side.
#[derive(Clone, Debug)]
pub struct Audit {
    /// The month.
    pub month: BillingMonth,
    /// By resource and component.
    pub rows: Vec<AuditRow>,
    /// What of the daily rows did not add up, or is not borne out by the log, and so is not billed.
    pub withheld: Vec<Withheld>,
    /// Models on one upstream model that the log does not tell apart.
    pub merged: Vec<Withheld>,
    /// Use of keys whose team is lost.
    pub unattributed: Counts,
}

impl Audit {
    /// Differences that nothing explains.
    #[must_use]
    pub fn unexplained(&self) -> usize {
        self.rows.iter().filter(|row| row.unexplained).count() + self.withheld.len()
    }
}

/// Equal up to the noise of the gateway's binary additions.
fn same(a: Decimal, b: Decimal) -> bool {
    let noise = Decimal::new(1, 9).max(a.abs().checked_mul(Decimal::new(1, 12)).unwrap_or_default());
    a.saturating_sub(b).abs() <= noise
}

#[derive(Default)]
struct Logged {
    all: BTreeMap<String, ModelTotals>,
    young: BTreeMap<String, ModelTotals>,
    late: BTreeMap<String, ModelTotals>,
    failed: BTreeMap<String, ModelTotals>,
}

fn add(sums: &mut BTreeMap<String, ModelTotals>, call: &LoggedCall) {
    let sum = sums.entry(call.model_group.clone()).or_default();
    sum.input_tokens = sum.input_tokens.saturating_add(Decimal::from(call.prompt_tokens));
    sum.output_tokens = sum.output_tokens.saturating_add(Decimal::from(call.completion_tokens));
    sum.spend = sum.spend.saturating_add(call.spend);
}

/// What one component counts of these models.
fn exact(kind: &str, model: Option<&str>, models: &BTreeMap<String, ModelTotals>) -> Decimal {
    let pick = |sum: &ModelTotals| match kind {
        "spend" => sum.spend,
        kind if kind == "input_tokens" || kind.ends_with(":input") => sum.input_tokens,
        _ => sum.output_tokens,
    };
    match model {
        Some(model) => models.get(model).map(pick).unwrap_or_default(),
        None => models.values().map(pick).fold(Decimal::ZERO, Decimal::saturating_add),
    }
}

impl Agent {
    /// Compares a month.
    ///
    /// # Errors
    /// What cannot be read as a whole.
    pub async fn audit(&self, month: BillingMonth, only: Option<Uuid>) -> Result<Audit, Failure> {
        let now = self.clock.now();
        let mut sold = Vec::new();
        let mut last_report: HashMap<String, Timestamp> = HashMap::new();
        for offering in &self.config.offerings {
            let mut resources = self.waldur.resources(offering.uuid, &[]).await?;
            resources.retain(|resource| resource.backend_id == team_id(resource.uuid) && only.is_none_or(|only| only == resource.uuid));
            if resources.is_empty() {
                continue;
            }
            let mut held: HashMap<Uuid, BTreeMap<String, Decimal>> = HashMap::new();
            for row in self.waldur.usages_of_offering(offering.uuid, month.first_day()).await? {
                let Some(resource) = row.resource else { continue };
                hold(held.entry(resource).or_default(), row.kind, row.usage);
                if let Some(at) = row.date {
                    let last = last_report.entry(team_id(resource)).or_insert(at);
                    *last = at.max(*last);
                }
            }
            sold.push((self.seller(offering.uuid).await?, resources, held));
        }
        let team = only.map(team_id);
        let teams: Vec<&str> = team.as_deref().into_iter().collect();
        let ours: BTreeSet<String> = sold.iter().flat_map(|(_, resources, _)| resources).map(|resource| team_id(resource.uuid)).collect();
        let names = sold.iter().flat_map(|(seller, ..)| seller.sold.clone()).collect();
        let whose = Whose { only: &teams, teams: &ours, sold: &names };
        let ledger = self.read_ledger(whose, month.first_day(), month.last_day()).await?;
        let young = now.checked_sub(YOUNG).unwrap_or(Timestamp::MIN);
        let exclude = self.config.usage.failed_calls == FailedCalls::Exclude;
        let mut logs: HashMap<String, Logged> = HashMap::new();
        let filter = LogFilter { team_id: team.as_deref(), ..LogFilter::default() };
        self.gateway
            .spend_logs(filter, month.first_day(), month.last_day(), |call| {
                let Some(team) = &call.team_id else { return };
                let logged = logs.entry(team.clone()).or_default();
                if call.failed {
                    add(&mut logged.failed, &call);
                    if exclude {
                        return;
                    }
                }
                add(&mut logged.all, &call);
                if call.started > young {
                    add(&mut logged.young, &call);
                }
                if last_report.get(team).is_none_or(|last| call.started > *last) {
                    add(&mut logged.late, &call);
                }
            })
            .await?;
        let nothing = Logged::default();
        let none = BTreeMap::new();
        let withheld = ledger.withheld.iter().chain(&ledger.unproven).cloned().collect();
        let mut audit = Audit { month, rows: Vec::new(), withheld, merged: ledger.merged.clone(), unattributed: ledger.unattributed };
        for (seller, resources, held) in &sold {
            for resource in resources {
                let team = team_id(resource.uuid);
                let used = ledger.team(&team, month.first_day(), month.last_day());
                let logged = logs.get(&team).unwrap_or(&nothing);
                let held = held.get(&resource.uuid).unwrap_or(&none);
                self.audit_resource(seller, resource, &used, logged, held, &mut audit);
            }
        }
        Ok(audit)
    }

    fn audit_resource(
        &self,
        seller: &super::report::Seller,
        resource: &Resource,
        used: &TeamUse,
        logged: &Logged,
        held: &BTreeMap<String, Decimal>,
        audit: &mut Audit,
    ) {
        let daily = &used.models;
        // Every model has its line, also where the offering has only components for all of them.
        let models: BTreeSet<&String> = daily.keys().chain(logged.all.keys()).collect();
        let of_model: BTreeMap<String, &String> = models
            .iter()
            .flat_map(|model| [Direction::Input, Direction::Output].map(|side| (usage_component(model, side), *model)))
            .collect();
        let mut kinds: BTreeSet<String> = seller.usable.clone();
        kinds.extend(of_model.keys().cloned());
        let none = BTreeMap::new();
        let amounts = |models| component_amounts(models, &kinds, seller.token_unit, &none, false).by_kind;
        let (by_day, by_log) = (amounts(daily), amounts(&logged.all));
        let shown: BTreeSet<&String> = by_day.keys().chain(by_log.keys()).chain(held.keys().filter(|kind| kinds.contains(*kind))).collect();
        for kind in shown {
            let model = of_model.get(kind).map(|model| model.as_str());
            let waldur = seller.usable.contains(kind).then(|| held.get(kind).copied().unwrap_or_default());
            let of = |models| exact(kind, model, models);
            let mut row = AuditRow {
                resource: resource.uuid,
                slug: resource.slug.clone(),
                kind: kind.clone(),
                model: model.map(str::to_owned),
                waldur,
                daily: by_day.get(kind).copied().unwrap_or_default(),
                log: by_log.get(kind).copied().unwrap_or_default(),
                daily_exact: of(daily),
                log_exact: of(&logged.all),
                estimated: of(&logged.failed),
                reasons: Vec::new(),
                unexplained: false,
            };
            // Of a model that is not told apart from others: how much the daily rows have under its name, or under theirs.
            let untold = model.filter(|model| used.untold.contains_key(*model)).map(|_| of(&used.untold));
            let (young, late) = (of(&logged.young), of(&logged.late));
            let more = row.log_exact.saturating_sub(row.daily_exact);
            if !same(row.log_exact, row.daily_exact) {
                row.reasons.push(match untold {
                    Some(untold) => Reason::SharedUpstream(untold),
                    None if more > Decimal::ZERO && more <= young => Reason::Lag(young),
                    None => Reason::LostFlush(more),
                });
            }
            if let Some(waldur) = row.waldur.filter(|waldur| *waldur != row.daily) {
                let unit = if kind == "spend" { Decimal::ONE } else { seller.token_unit };
                // What Waldur would hold had those calls not been made.
                let without = |less: Decimal| {
                    waldur < row.daily && waldur >= crate::domain::amount(row.daily_exact.saturating_sub(less).max(Decimal::ZERO), unit)
                };
                let reason = match () {
                    () if untold.is_some_and(without) => untold.map(Reason::SharedUpstream),
                    () if !young.is_zero() && without(young) => Some(Reason::Lag(young)),
                    () if resource.state == ResourceState::Terminated && !late.is_zero() && without(late) => {
                        Some(Reason::AfterTermination(late))
                    }
                    () => None,
                };
                row.unexplained = reason.is_none();
                row.reasons.extend(reason.filter(|reason| !row.reasons.contains(reason)));
            }
            audit.rows.push(row);
        }
    }
}
