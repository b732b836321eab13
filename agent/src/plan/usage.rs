//! From the gateway's daily rows to the amounts of a resource's components.

use std::collections::{BTreeMap, BTreeSet};

use litellm_client::DayPage;
use rust_decimal::Decimal;
use waldur_client::{BillingType, Component, Usage};

use crate::domain::{Direction, amount, usage_component};

/// A month of one team and one public model name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelTotals {
    /// Prompt tokens, cached ones included.
    pub input_tokens: Decimal,
    /// Completion tokens.
    pub output_tokens: Decimal,
    /// Spend in the gateway's currency.
    pub spend: Decimal,
}

/// Adds up the rows of one team by public model name.
///
/// Calls that were refused before they reached a model appear under an empty name; they count like any other row, so
/// that nothing the ledger shows is dropped.
#[must_use]
pub fn sum_models(days: &[DayPage]) -> BTreeMap<String, ModelTotals> {
    let mut totals: BTreeMap<String, ModelTotals> = BTreeMap::new();
    for row in days.iter().flat_map(|day| &day.models) {
        let sum = totals.entry(row.model_group.clone()).or_default();
        sum.input_tokens += Decimal::from(row.totals.prompt_tokens);
        sum.output_tokens += Decimal::from(row.totals.completion_tokens);
        sum.spend += row.totals.spend;
    }
    totals.retain(|_, sum| *sum != ModelTotals::default());
    totals
}

/// The amounts for every usage component of the offering that the agent knows how to fill: per model (`<key>:input`,
/// `<key>:output`, in `token_unit` tokens) and aggregate (`input_tokens`, `output_tokens`, `spend`). Components that stay
/// at zero are sent too where Waldur holds another figure, so `held` names the types it has.
///
/// The second value lists models with usage that no component takes.
#[must_use]
pub fn component_amounts(totals: &BTreeMap<String, ModelTotals>, components: &[Component], token_unit: Decimal, held: &BTreeSet<String>) -> (Vec<Usage>, Vec<String>) {
    let usable: BTreeSet<&str> = components.iter().filter(|c| c.billing_type == BillingType::Usage).map(|c| c.kind.as_str()).collect();
    let mut amounts: BTreeMap<String, Decimal> = BTreeMap::new();
    let mut homeless = Vec::new();
    let all = |pick: fn(&ModelTotals) -> Decimal| totals.values().map(pick).sum::<Decimal>();
    for (kind, value) in [
        ("input_tokens", amount(all(|t| t.input_tokens), token_unit)),
        ("output_tokens", amount(all(|t| t.output_tokens), token_unit)),
        ("spend", amount(all(|t| t.spend), Decimal::ONE)),
    ] {
        amounts.insert(kind.into(), value);
    }
    let aggregate = amounts.keys().any(|kind| usable.contains(kind.as_str()));
    for (model, sum) in totals {
        let sides = [(Direction::Input, sum.input_tokens), (Direction::Output, sum.output_tokens)];
        let mut housed = aggregate;
        for (direction, tokens) in sides {
            let kind = usage_component(model, direction);
            housed |= usable.contains(kind.as_str());
            *amounts.entry(kind).or_default() += amount(tokens, token_unit);
        }
        if !housed {
            homeless.push(model.clone());
        }
    }
    // A figure that Waldur holds and the ledger no longer shows is not forgotten: it is compared, and only ever raised.
    for kind in held {
        amounts.entry(kind.clone()).or_default();
    }
    let usages = amounts
        .into_iter()
        .filter(|(kind, value)| usable.contains(kind.as_str()) && (!value.is_zero() || held.contains(kind)))
        .map(|(kind, amount)| Usage { kind, amount })
        .collect();
    (usages, homeless)
}
