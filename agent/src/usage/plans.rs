//! Usage of a month in which the resource changed its plan. Servers of 2024 keep a figure for each time in which a resource
//! had one plan, and what they are told replaces that of the present one only; late-2026 servers take the month's total and
//! take the earlier figures off by themselves. Either way the sum is what is billed.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use uuid::Uuid;
use waldur_client::{ApiKeyFilter, Class, Resource, Usage};

use super::report::{Held, hold};
use crate::agent::{Agent, Failure};
use crate::domain::BillingMonth;
use crate::features::Feature;

/// What is known about the plans of a resource.
#[derive(Clone, Debug)]
pub(super) struct Plans {
    month: BillingMonth,
    plan: Option<Uuid>,
    earlier: BTreeMap<String, Decimal>,
}

impl Plans {
    pub(super) fn is_of(&self, months: &[BillingMonth]) -> bool {
        months.contains(&self.month)
    }
}

impl Agent {
    /// What Waldur holds of the running month for plans that the resource no longer has, by component; mostly nothing. Waldur
    /// is asked only where there is a figure already and the plan is another than at the last look, or was never looked at.
    pub(super) async fn earlier_plans(
        &self,
        resource: &Resource,
        month: BillingMonth,
        held: &Held,
    ) -> Result<BTreeMap<String, Decimal>, Failure> {
        let id = resource.uuid;
        let known = self.memory().usage.plans.get(&id).cloned();
        if let Some(known) = known.filter(|known| known.month == month && known.plan == resource.plan)
            && !(held.many_plans && known.earlier.is_empty())
        {
            return Ok(known.earlier);
        }
        let mut earlier: BTreeMap<String, Decimal> = BTreeMap::new();
        if !held.by_kind.is_empty() {
            let periods = match self.waldur.plan_periods(id).await {
                Ok(periods) => periods,
                Err(error) if error.class() == Class::NoSuchRoute => Vec::new(),
                Err(error) => return Err(error.into()),
            };
            for row in periods.into_iter().filter(|period| period.end.is_some()).flat_map(|period| period.components) {
                hold(&mut earlier, row.kind, row.usage);
            }
            earlier.retain(|_, usage| !usage.is_zero());
        }
        self.memory().usage.plans.insert(id, Plans { month, plan: resource.plan, earlier: earlier.clone() });
        Ok(earlier)
    }

    /// Whether this Waldur takes off by itself what earlier plans hold of a month: by what a read-back showed, or else by its
    /// generation.
    pub(super) async fn splits_plans(&self, resource: Uuid) -> Result<bool, Failure> {
        if let Some(known) = self.features.known(Feature::PlanSplit) {
            return Ok(known);
        }
        if self.features.known(Feature::ApiKeys).is_none() {
            self.api_keys(ApiKeyFilter { resource: Some(resource), offering: None }).await?;
        }
        Ok(self.features.known(Feature::ApiKeys) == Some(true))
    }
}

/// What is left of the totals for the present plan.
pub(super) fn rest(totals: &[Usage], earlier: &BTreeMap<String, Decimal>) -> Vec<Usage> {
    let left = |usage: &Usage| {
        let before = earlier.get(&usage.kind).copied().unwrap_or_default();
        Usage { kind: usage.kind.clone(), amount: usage.amount.saturating_sub(before).max(Decimal::ZERO) }
    };
    totals.iter().map(left).collect()
}
