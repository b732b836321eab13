//! What a resource may spend and how fast: from Waldur's limits to the caps of its team.

use std::collections::BTreeMap;
use std::fmt;

use rust_decimal::Decimal;

use crate::config::{LimitRule, LimitsConfig};

/// The caps of a team at the gateway. `None` is "no cap".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TeamLimits {
    /// Spend per calendar month, in the environment's currency.
    pub max_budget: Option<Decimal>,
    /// Tokens per minute.
    pub tpm_limit: Option<u64>,
    /// Requests per minute.
    pub rpm_limit: Option<u64>,
}

impl TeamLimits {
    /// A budget of zero does not stop the first call at the gateway, so it is expressed by blocking the team.
    #[must_use]
    pub fn blocks(&self) -> bool {
        self.max_budget.is_some_and(|budget| budget.is_zero())
    }
}

/// Why limits cannot be served. The text is shown to the customer who ordered them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitProblem(pub String);

impl fmt::Display for LimitProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The caps that follow from what was ordered, the catalogue's monthly budget and the offering's defaults, in that order.
/// A budget of the catalogue above the offering's maximum counts as that maximum: no customer chose it.
///
/// # Errors
/// Every limit that is negative, zero where zero means nothing, above the offering's maximum or not a whole number.
pub fn effective_limits(
    ordered: &BTreeMap<String, Decimal>,
    catalogue_budget: Option<Decimal>,
    rules: &LimitsConfig,
) -> Result<TeamLimits, Vec<LimitProblem>> {
    let mut problems = Vec::new();
    let mut checked = |name: &str, rule: &LimitRule, fallback: Option<Decimal>, zero_is_meant: bool| {
        let value = ordered.get(name).copied().or_else(|| rule.default_after(fallback))?;
        let problem = if value.is_sign_negative() && !value.is_zero() {
            Some("may not be negative".to_owned())
        } else if value.is_zero() && !zero_is_meant {
            Some("may not be 0: leave it out for no limit, or terminate the resource to stop access".to_owned())
        } else {
            rule.max.filter(|max| value > *max).map(|max| format!("may be at most {max}"))
        };
        match problem {
            Some(problem) => {
                problems.push(LimitProblem(format!("{name} is {value} but {problem}")));
                None
            }
            None => Some(value.normalize()),
        }
    };
    let max_budget = checked("max_budget", &rules.max_budget, catalogue_budget, true);
    let tpm = checked("tpm_limit", &rules.tpm_limit, None, false);
    let rpm = checked("rpm_limit", &rules.rpm_limit, None, false);
    let mut whole = |name: &str, value: Option<Decimal>| {
        let value = value?;
        let number = value.is_integer().then(|| u64::try_from(value).ok()).flatten();
        if number.is_none() {
            problems.push(LimitProblem(format!("{name} is {value} but must be a whole number")));
        }
        number
    };
    let (tpm_limit, rpm_limit) = (whole("tpm_limit", tpm), whole("rpm_limit", rpm));
    if max_budget.is_none() && problems.is_empty() && !rules.allow_unlimited {
        problems.push(LimitProblem("max_budget is missing: this offering needs a monthly budget".into()));
    }
    if problems.is_empty() { Ok(TeamLimits { max_budget, tpm_limit, rpm_limit }) } else { Err(problems) }
}
