//! Spend against budgets, as the gateway counts it for its own refusals. Not what is billed: these counters are reset by the
//! gateway each month and by other hands.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use litellm_client::Team;
use rust_decimal::Decimal;
use uuid::Uuid;

use crate::agent::Agent;
use crate::observe::World;
use crate::observe::packed::Packed;
use crate::orders::count;

/// A budget that was to be reset so long ago still was not.
const OVERDUE: SignedDuration = SignedDuration::from_hours(1);

/// The shares that are counted, in percent. Bounded, unlike one figure per resource.
const SHARES: [u32; 4] = [50, 80, 90, 100];

/// The share of a budget that is spent, in whole percent, rounded down; `None` without a budget.
#[must_use]
pub fn share(team: &Team) -> Option<Decimal> {
    let budget = team.max_budget.filter(|budget| !budget.is_zero())?;
    // A reset can leave a spend that is a hair below nothing.
    let spend = team.spend.max(Decimal::ZERO);
    Some(spend.checked_mul(Decimal::ONE_HUNDRED)?.checked_div(budget)?.floor())
}

/// Whether the gateway should have reset the budget of a team over an hour ago.
#[must_use]
pub fn is_overdue(team: &Team, now: Timestamp) -> bool {
    let due = team.budget_reset_at.filter(|_| team.max_budget.is_some());
    due.and_then(|at| at.checked_add(OVERDUE).ok()).is_some_and(|limit| now > limit)
}

impl Agent {
    /// Counts resources by the share of their budget that is spent, and alarms where the gateway does not reset budgets.
    pub(crate) fn note_budgets(&self, world: &World) {
        const NAME: &str = "budget-not-reset";
        let now = self.clock.now();
        let mut by_share: BTreeMap<u32, usize> = SHARES.into_iter().map(|share| (share, 0)).collect();
        let mut overdue = 0_usize;
        let mut still = std::collections::HashSet::<Uuid>::new();
        for id in world.resources.keys() {
            let Some(team) = world.teams.get(&crate::domain::team_id(*id)).map(Packed::bare) else { continue };
            if let Some(spent) = share(team) {
                for (_, resources) in by_share.iter_mut().filter(|(share, _)| spent >= Decimal::from(**share)) {
                    *resources += 1;
                }
            }
            if is_overdue(team, now) {
                overdue += 1;
                still.insert(*id);
                let at = team.budget_reset_at.map(|at| at.to_string()).unwrap_or_default();
                self.conditions.raise(NAME, id.simple(), format!("the gateway was to reset the budget of team {} at {at} and has not; a full budget goes on refusing calls. Look into the gateway's log for its reset job", team.team_id));
            }
        }
        self.conditions.clear_others(NAME, &still);
        for (share, resources) in by_share {
            metrics::gauge!("llm_access_resources_by_spent_share", "percent" => share.to_string()).set(count(resources));
        }
        metrics::gauge!("llm_access_budget_resets_overdue").set(count(overdue));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn team(budget: Option<&str>, spend: &str, reset: Option<&str>) -> Team {
        Team {
            max_budget: budget.map(|budget| budget.parse().unwrap()),
            spend: spend.parse().unwrap(),
            budget_reset_at: reset.map(|at| at.parse().unwrap()),
            ..Team::default()
        }
    }

    #[test]
    fn a_share_is_rounded_down_and_never_below_nothing() {
        for (budget, spend, percent) in
            [("50", "49.999", "99"), ("50", "50", "100"), ("0.5", "0.25", "50"), ("50", "-0.0000000000000000002", "0"), ("50", "60", "120")]
        {
            assert_eq!(share(&team(Some(budget), spend, None)).unwrap().to_string(), percent, "{spend} of {budget}");
        }
        assert_eq!(share(&team(None, "5", None)), None);
        assert_eq!(share(&team(Some("0"), "5", None)), None);
    }

    #[test]
    fn a_reset_is_overdue_an_hour_after_it_was_due() {
        let due = Some("2026-12-01T00:00:00Z");
        let overdue = |team: &Team, now: &str| is_overdue(team, now.parse().unwrap());
        assert!(!overdue(&team(Some("50"), "1", due), "2026-12-01T01:00:00Z"));
        assert!(overdue(&team(Some("50"), "1", due), "2026-12-01T01:00:01Z"));
        assert!(!overdue(&team(None, "1", due), "2026-12-09T00:00:00Z"));
        assert!(!overdue(&team(Some("50"), "1", None), "2026-12-09T00:00:00Z"));
    }
}
