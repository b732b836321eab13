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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn dec(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    /// What follows from these limits of an order, or what its customer reads.
    fn limits(ordered: &[(&str, &str)], catalogue: Option<&str>, rules: &LimitsConfig) -> Result<TeamLimits, Vec<String>> {
        let ordered = ordered.iter().map(|(name, value)| ((*name).to_owned(), dec(value))).collect();
        let limits = effective_limits(&ordered, catalogue.map(dec), rules);
        limits.map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    fn caps(max_budget: Option<&str>, tpm_limit: Option<u64>, rpm_limit: Option<u64>) -> TeamLimits {
        TeamLimits { max_budget: max_budget.map(dec), tpm_limit, rpm_limit }
    }

    #[test]
    fn only_a_budget_of_nothing_stops_all_calls() {
        for (budget, blocks) in [(None, false), (Some("0"), true), (Some("0.00"), true), (Some("0.01"), false)] {
            assert_eq!(caps(budget, Some(1), None).blocks(), blocks, "{budget:?}");
        }
    }

    #[test]
    fn an_order_goes_before_the_catalogue_and_that_before_the_default() {
        let rule = |default: &str, max: &str| LimitRule { default: Some(dec(default)), max: Some(dec(max)) };
        let rules = LimitsConfig {
            max_budget: rule("10", "100"),
            tpm_limit: rule("5000", "9000"),
            rpm_limit: LimitRule::default(),
            allow_unlimited: false,
        };
        assert_eq!(limits(&[], None, &rules), Ok(caps(Some("10"), Some(5000), None)));
        assert_eq!(limits(&[], Some("40"), &rules), Ok(caps(Some("40"), Some(5000), None)));
        assert_eq!(limits(&[], Some("400"), &rules), Ok(caps(Some("100"), Some(5000), None)), "no customer chose it");
        let ordered = [("max_budget", "100.00"), ("tpm_limit", "9000"), ("rpm_limit", "60")];
        assert_eq!(limits(&ordered, Some("40"), &rules), Ok(caps(Some("100"), Some(9000), Some(60))), "the most is not too much");
        assert_eq!(limits(&[("max_budget", "0")], None, &rules), Ok(caps(Some("0"), Some(5000), None)), "a budget of nothing is meant");
    }

    #[test]
    fn a_customer_reads_everything_that_is_wrong_with_an_order() {
        let rules = LimitsConfig {
            max_budget: LimitRule { default: None, max: Some(dec("100")) },
            allow_unlimited: true,
            ..LimitsConfig::default()
        };
        let zero = "is 0 but may not be 0: leave it out for no limit, or terminate the resource to stop access";
        for (ordered, said) in [
            (vec![("max_budget", "100.01")], vec!["max_budget is 100.01 but may be at most 100".to_owned()]),
            (
                vec![("max_budget", "-1"), ("tpm_limit", "0"), ("rpm_limit", "1.5")],
                vec![
                    "max_budget is -1 but may not be negative".to_owned(),
                    format!("tpm_limit {zero}"),
                    "rpm_limit is 1.5 but must be a whole number".to_owned(),
                ],
            ),
            (vec![("rpm_limit", "-60")], vec!["rpm_limit is -60 but may not be negative".to_owned()]),
            (vec![("tpm_limit", "18446744073709551616")], vec!["tpm_limit is 18446744073709551616 but must be a whole number".to_owned()]),
        ] {
            assert_eq!(limits(&ordered, None, &rules), Err(said), "{ordered:?}");
        }
        assert_eq!(limits(&[("max_budget", "-0.0")], None, &rules), Ok(caps(Some("0"), None, None)), "nothing below nothing is nothing");
        assert_eq!(limits(&[("tpm_limit", "18446744073709551615")], None, &rules), Ok(caps(None, Some(u64::MAX), None)));
    }

    #[test]
    fn nobody_gets_access_without_a_budget_where_one_is_asked_for() {
        let strict = LimitsConfig::default();
        assert_eq!(limits(&[], None, &strict), Err(vec!["max_budget is missing: this offering needs a monthly budget".into()]));
        assert_eq!(limits(&[], None, &LimitsConfig { allow_unlimited: true, ..strict }), Ok(caps(None, None, None)));
        // What is wrong with the budget is said, not that there is none.
        assert_eq!(limits(&[("max_budget", "-1")], None, &strict), Err(vec!["max_budget is -1 but may not be negative".into()]));
    }
}
