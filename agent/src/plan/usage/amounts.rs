//! From tokens and spend to the amounts of components, and which of them have to be sent.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::Date;
use rust_decimal::Decimal;
use sha2::{Digest as _, Sha256};
use waldur_client::{BillingType, Component, DailyUsage, Usage};

use super::ledger::ModelTotals;
use crate::domain::{Direction, amount, usage_component};

/// The components that add up all models.
const AGGREGATE: [&str; 3] = ["input_tokens", "output_tokens", "spend"];

/// The amounts of a resource in a month.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// By component type; those without an entry are 0.
    pub by_kind: BTreeMap<String, Decimal>,
    /// Component types whose figure is not known in full: their model shares its upstream with another, or the figures are
    /// none that can be. What is in `by_kind` is the least of it.
    pub unknown: BTreeSet<String>,
    /// Models with usage that no component takes.
    pub homeless: Vec<String>,
    /// Something of the month is withheld, so that figures can be too low.
    pub partial: bool,
}

/// The types of an offering's components that take usage.
#[must_use]
pub fn usable_components(components: &[Component]) -> BTreeSet<String> {
    components.iter().filter(|component| component.billing_type == BillingType::Usage).map(|component| component.kind.clone()).collect()
}

/// The amounts for every usage component of the offering that the agent knows how to fill: per model (`<key>:input`,
/// `<key>:output`, in `token_unit` tokens) and aggregate (`input_tokens`, `output_tokens`, `spend`), each the month's total
/// divided by the unit and then rounded half-up, so that it never drifts from the total however often it is sent. `untold`
/// is how much of each model is in rows that may be another's: a model's own amount leaves it out, the aggregate ones have
/// it. A total that is below nothing or too large is no amount.
#[must_use]
pub fn component_amounts(
    models: &BTreeMap<String, ModelTotals>,
    usable: &BTreeSet<String>,
    token_unit: Decimal,
    untold: &BTreeMap<String, ModelTotals>,
    partial: bool,
) -> Amounts {
    let mut amounts = Amounts { partial, ..Amounts::default() };
    let total = |pick: fn(&ModelTotals) -> Decimal| models.values().map(pick).try_fold(Decimal::ZERO, Decimal::checked_add);
    amounts.put("input_tokens".into(), total(|sum| sum.input_tokens), token_unit);
    amounts.put("output_tokens".into(), total(|sum| sum.output_tokens), token_unit);
    amounts.put("spend".into(), total(|sum| sum.spend), Decimal::ONE);
    let aggregate = AGGREGATE.iter().any(|kind| usable.contains(*kind));
    let none = ModelTotals::default();
    for (model, sum) in models {
        let (mut housed, mut lost) = (aggregate, false);
        let others = untold.get(model).unwrap_or(&none);
        for (direction, tokens, others) in
            [(Direction::Input, sum.input_tokens, others.input_tokens), (Direction::Output, sum.output_tokens, others.output_tokens)]
        {
            let kind = usage_component(model, direction);
            // An embedding has no output component, and no output.
            housed |= usable.contains(&kind);
            lost |= !usable.contains(&kind) && !tokens.is_zero() && !aggregate;
            amounts.put(kind, tokens.checked_sub(others), token_unit);
        }
        if !housed || lost {
            amounts.homeless.push(model.clone());
        }
    }
    for model in untold.keys() {
        amounts.unknown.extend([Direction::Input, Direction::Output].map(|direction| usage_component(model, direction)));
    }
    amounts.by_kind.retain(|kind, value| usable.contains(kind) && !value.is_zero());
    amounts.unknown.retain(|kind| usable.contains(kind));
    amounts
}

impl Amounts {
    /// A digest of all of them, so that what was seen once need not be kept to be recognized.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(format!("{self:?}").as_bytes()).into()
    }

    fn put(&mut self, kind: String, total: Option<Decimal>, unit: Decimal) {
        match total.map(|total| amount(total, unit)) {
            Some(amount) if !amount.is_sign_negative() => drop(self.by_kind.insert(kind, amount)),
            _ => drop(self.unknown.insert(kind)),
        }
    }
}

/// The amounts by day: the rounded total up to the end of a day, less that up to the end of the day before, so that the days
/// of a month add up to its amount. None where a total is no amount.
#[must_use]
pub fn daily_amounts(
    days: &BTreeMap<Date, BTreeMap<String, ModelTotals>>,
    usable: &BTreeSet<String>,
    token_unit: Decimal,
) -> Vec<DailyUsage> {
    let mut so_far: BTreeMap<String, ModelTotals> = BTreeMap::new();
    let mut before: BTreeMap<String, Decimal> = BTreeMap::new();
    let mut daily = Vec::new();
    for (date, models) in days {
        for (model, counts) in models {
            let sum = so_far.entry(model.clone()).or_default();
            let Some(more) = sum.checked_add(counts) else { return Vec::new() };
            *sum = more;
        }
        let now = component_amounts(&so_far, usable, token_unit, &BTreeMap::new(), false);
        if !now.unknown.is_empty() {
            return Vec::new();
        }
        for (kind, value) in &now.by_kind {
            let amount = *value - before.get(kind).copied().unwrap_or_default();
            if !amount.is_zero() {
                daily.push(DailyUsage { kind: kind.clone(), date: *date, amount });
            }
        }
        before = now.by_kind;
    }
    daily
}

/// A figure that is lower than what Waldur holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lower {
    /// Component type.
    pub kind: String,
    /// What Waldur holds for the month.
    pub held: Decimal,
    /// What the gateway's ledger says.
    pub ledger: Decimal,
}

/// What has to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// All components of the resource that are not 0 at both sides, in one batch; empty where Waldur holds them already.
    pub send: Vec<Usage>,
    /// Figures that would fall and so stay as Waldur has them.
    pub lower: Vec<Lower>,
}

/// Whether the agent fills components of this type. What another system left in Waldur is not its business.
fn is_filled(kind: &str) -> bool {
    AGGREGATE.contains(&kind) || kind.ends_with(":input") || kind.ends_with(":output")
}

/// Compares with what Waldur holds for the same month. A figure is only ever raised, unless `allow_decrease`; not even
/// then where something of the month is withheld or unknown, since the lower figure would be known to be wrong.
#[must_use]
pub fn decide(amounts: &Amounts, held: &BTreeMap<String, Decimal>, usable: &BTreeSet<String>, allow_decrease: bool) -> Decision {
    let mut decision = Decision::default();
    let kinds: BTreeSet<&String> =
        amounts.by_kind.keys().chain(held.keys()).filter(|kind| usable.contains(*kind) && is_filled(kind)).collect();
    let mut changed = false;
    for kind in kinds {
        let before = held.get(kind).copied();
        let mut value = amounts.by_kind.get(kind).copied().unwrap_or_default();
        if let Some(before) = before.filter(|before| value < *before) {
            let known = !amounts.partial && !amounts.unknown.contains(kind);
            if known && !allow_decrease {
                decision.lower.push(Lower { kind: kind.clone(), held: before, ledger: value });
            }
            if !(known && allow_decrease) {
                value = before;
            }
        }
        if before.is_none() && value.is_zero() {
            continue;
        }
        changed |= before != Some(value);
        decision.send.push(Usage { kind: kind.clone(), amount: value });
    }
    if !changed {
        decision.send.clear();
    }
    decision
}
