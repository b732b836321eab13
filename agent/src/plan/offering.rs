//! From the catalogue to the offering: what Waldur sells, in which components, at which prices, and what happens to the
//! components of a model that has gone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;
use serde_json::{Map, Value, json};
use uuid::Uuid;
use waldur_client::{BillingType, Component, ComponentChange, NewComponent, Offering, Plan};

use super::notes::{ALL, KEY, Note, Notes, OPTION};
use crate::catalogue::{Model, View};
use crate::config::{Billing, Family, LimitRule, OfferingConfig, TokenUnit};
use crate::domain::{BillingMonth, Direction, usage_component};

#[cfg(test)]
mod tests;

/// What a price of zero is led up to with where a future price is still unset: a Waldur of the first generation takes such a
/// zero without a word and goes on charging the old price.
const NUDGE: Decimal = Decimal::from_parts(1, 0, 0, false, 10);

/// The start of the name of a component that could not be removed.
pub(crate) const RETIRED: &str = "[retired] ";

/// The longest name of a component, in characters.
const LONGEST_NAME: usize = 150;

/// A removal that Waldur refused is tried again after this long.
const TRY_AGAIN: SignedDuration = SignedDuration::from_hours(24);

/// A model that went in the last hours of a month may still be used in the first minutes of the next.
const LAST_CALLS: SignedDuration = SignedDuration::from_hours(24);

/// What the plan of an offering depends on, besides the offering.
#[derive(Clone, Copy, Debug)]
pub struct Shop<'a> {
    /// This environment.
    pub owner: &'a str,
    /// The offering's settings.
    pub settings: &'a OfferingConfig,
    /// The models there are.
    pub view: &'a View,
    /// The time.
    pub now: Timestamp,
    /// For how many days after a month its usage may still change.
    pub late_days: u32,
    /// Whether usage could not be reported as a whole, so that no component may go.
    pub usage_owed: bool,
    /// A price of zero was sent and not kept: lead up to it, whatever the plan says of its resources.
    pub stubborn: bool,
}

/// One call to Waldur about an offering.
#[derive(Clone, Debug, PartialEq)]
pub enum OfferingAction {
    /// Replace our notes on the offering; foreign ones are kept.
    Note(Notes),
    /// Make a component.
    CreateComponent(NewComponent),
    /// Change what differs at a component.
    UpdateComponent {
        /// Its uuid.
        uuid: Uuid,
        /// Its type.
        kind: String,
        /// Only what changes.
        change: ComponentChange,
    },
    /// Send the whole price map of a plan.
    SetPrices {
        /// The plan.
        plan: Uuid,
        /// Its name.
        name: String,
        /// Every price, those of others as they are.
        prices: BTreeMap<String, Decimal>,
        /// What changes: type, price now, price then.
        changes: Vec<(String, Decimal, Decimal)>,
    },
    /// Replace the order form.
    SetOptions(Value),
    /// Replace the form of a resource's options.
    SetResourceOptions(Value),
    /// Remove a component; where Waldur refuses, that is noted, and the component is retired.
    RemoveComponent {
        /// Its uuid.
        uuid: Uuid,
        /// Its type.
        kind: String,
    },
}

impl fmt::Display for OfferingAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Note(notes) => {
                let with_components = notes.components.values().filter(|note| note.gone.is_some()).filter_map(|note| note.model.as_deref());
                let gone: BTreeSet<&str> = with_components.chain(notes.gone.iter().map(String::as_str)).collect();
                write!(f, "note which components are ours ({})", notes.components.len())?;
                if !gone.is_empty() {
                    write!(f, "; gone: {}", gone.into_iter().collect::<Vec<_>>().join(", "))?;
                }
                Ok(())
            }
            Self::CreateComponent(component) => {
                write!(f, "create component {} ({})", component.kind, component.details.name.as_deref().unwrap_or_default())
            }
            Self::UpdateComponent { kind, change, .. } => write!(f, "change component {kind}: {}", describe_change(change)),
            Self::SetPrices { name, changes, .. } => {
                let changes: Vec<String> = changes.iter().map(|(kind, from, to)| format!("{kind} {from} → {to}")).collect();
                write!(f, "set prices of plan {name}: {}", changes.join(", "))
            }
            Self::SetOptions(form) => write!(f, "set the choices of `{OPTION}` on the order form: {}", listed(form)),
            Self::SetResourceOptions(form) => write!(f, "set the choices of `{OPTION}` on resources: {}", listed(form)),
            Self::RemoveComponent { kind, .. } => write!(f, "remove component {kind} and its usage history in Waldur"),
        }
    }
}

impl OfferingAction {
    /// Its name as a metric label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Note(_) => "note-on-offering",
            Self::CreateComponent(_) => "create-component",
            Self::UpdateComponent { .. } => "update-component",
            Self::SetPrices { .. } => "set-prices",
            Self::SetOptions(_) => "set-options",
            Self::SetResourceOptions(_) => "set-resource-options",
            Self::RemoveComponent { .. } => "remove-component",
        }
    }
}

fn describe_change(change: &ComponentChange) -> String {
    let number = |name: &str, value: Option<i64>| value.map(|value| format!("{name} → {value}"));
    let bound = |name: &str, value: Option<Option<i64>>| {
        value.map(|value| format!("{name} → {}", value.map_or_else(|| "none".into(), |value| value.to_string())))
    };
    let text = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("{name} → {value:?}"));
    let parts = [
        text("name", &change.name),
        text("description", &change.description),
        text("unit", &change.measured_unit),
        text("limit period", &change.limit_period),
        number("least", change.min_value),
        bound("most", change.max_value),
        bound("default", change.default_limit),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn listed(form: &Value) -> String {
    let choices = form.pointer("/options/models/choices").and_then(Value::as_array);
    choices.into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

/// Something about an offering that people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A plan that the configuration names is not there.
    NoSuchPlan(String),
    /// A component of a type that we need is charged in another way than ours are, so somebody else made it.
    NotOurs {
        /// Its type.
        kind: String,
        /// How it is charged.
        billing: BillingType,
    },
    /// A price is set and waits for the first of the month.
    Pending {
        /// The component's type.
        kind: String,
        /// The plan.
        plan: String,
        /// The price until then.
        now: Decimal,
        /// The price from then on.
        then: Decimal,
    },
    /// A component of a model that has gone cannot be removed.
    Retired {
        /// Its type.
        kind: String,
        /// What Waldur says.
        reason: String,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchPlan(plan) => write!(f, "there is no plan {plan:?}, so no prices are kept there; correct offerings[].plans"),
            Self::NotOurs { kind, billing } => {
                write!(
                    f,
                    "component {kind} is charged as {billing}, so somebody else made it; it is left alone. Remove it, or change its accounting type"
                )
            }
            Self::Pending { kind, plan, now, then } => write!(f, "the price of {kind} on plan {plan} is {now}, and {then} from the 1st"),
            Self::Retired { kind, reason } => write!(f, "component {kind} is retired, and its removal is tried again daily: {reason}"),
        }
    }
}

/// What is left to do at an offering.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfferingPlan {
    /// In this order.
    pub actions: Vec<OfferingAction>,
    /// For people.
    pub findings: Vec<Finding>,
}

/// What a component of ours is to look like.
#[derive(Clone, Debug)]
struct Wanted {
    kind: String,
    model: Option<String>,
    billing: BillingType,
    name: String,
    description: String,
    unit: String,
    limit: Option<LimitRule>,
    price: Decimal,
}

impl Wanted {
    /// Whether what there is may be changed to it.
    fn is_settled(&self, shop: &Shop<'_>) -> bool {
        self.model.as_ref().is_none_or(|model| shop.view.is_settled(model))
    }
}

/// The state of one component in the life of its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Sold.
    Current,
    /// Its model is missed too short a time, or the catalogue is held: nothing changes.
    Held,
    /// Its model has gone; usage is still reported, and then it is removed.
    Gone,
    /// Waldur refuses to remove it.
    Retired,
    /// Ours, but nothing needs it: a family of components that is not configured any more.
    Unused,
    /// Not ours.
    Foreign,
}

impl Stage {
    /// Its name, for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Current => "sold",
            Self::Held => "held",
            Self::Gone => "gone",
            Self::Retired => "retired",
            Self::Unused => "unused",
            Self::Foreign => "not ours",
        }
    }
}

/// What is left to do until the offering is as the catalogue says; empty when nothing is.
///
/// # Errors
/// What keeps the agent from touching the offering at all.
pub fn plan_offering(shop: &Shop<'_>, offering: &Offering) -> Result<OfferingPlan, String> {
    let notes = Notes::read(offering);
    if let Some(owner) = notes.owner.as_ref().filter(|owner| *owner != shop.owner) {
        return Err(format!(
            "offering {} is kept by the agent of {owner:?}; it is left alone. Remove {KEY} from its backend_metadata to take it over",
            offering.uuid.simple()
        ));
    }
    let mut plan = OfferingPlan::default();
    if !shop.view.may_be_acted_upon() {
        return Ok(plan);
    }
    let (managed, absent) = managed_plans(shop.settings, offering);
    plan.findings.extend(absent.into_iter().map(Finding::NoSuchPlan));

    let mut wanted = wanted_components(shop);
    let by_kind: BTreeMap<&str, &Component> = offering.components.iter().map(|component| (component.kind.as_str(), component)).collect();
    let mut notes_left = notes.clone();
    wanted.retain(|want| match by_kind.get(want.kind.as_str()) {
        Some(there) if there.billing_type != want.billing => {
            plan.findings.push(Finding::NotOurs { kind: want.kind.clone(), billing: there.billing_type.clone() });
            // Somebody may have made it their own; what is noted as ours costs nothing where nothing asks for it.
            notes_left.components.remove(&want.kind);
            false
        }
        _ => true,
    });
    for want in &mut wanted {
        say_price(shop, &managed, want);
    }

    let next = next_notes(shop, offering, &notes_left, &wanted);
    if next != notes {
        plan.actions.push(OfferingAction::Note(next.clone()));
    }
    for want in &wanted {
        match by_kind.get(want.kind.as_str()) {
            None => plan.actions.push(OfferingAction::CreateComponent(create(want))),
            Some(there) if want.is_settled(shop) => plan.actions.extend(change(want, there)),
            Some(_) => {}
        }
    }
    plan.actions.extend(offering.components.iter().filter_map(|there| retire(&next, &wanted, there)));
    let prices = our_prices(shop, offering, &next, &wanted);
    for managed in &managed {
        plan.actions.extend(set_prices(shop, offering, managed, &prices, &wanted));
        plan.findings.extend(pending(managed, &prices));
    }
    let (options, resource_options) = (form(shop, &offering.options), form(shop, &offering.resource_options));
    if let Some(form) = resource_options {
        plan.actions.push(OfferingAction::SetResourceOptions(form));
    }
    if let Some(form) = options {
        plan.actions.push(OfferingAction::SetOptions(form));
    }
    for (kind, note) in &next.components {
        let Some(component) = by_kind.get(kind.as_str()) else { continue };
        if note.refused.is_some() {
            plan.findings.push(Finding::Retired { kind: kind.clone(), reason: note.reason.clone() });
        }
        if let (Some(uuid), true) = (component.uuid, may_be_removed(shop, note)) {
            plan.actions.push(OfferingAction::RemoveComponent { uuid, kind: kind.clone() });
        }
    }
    Ok(plan)
}

/// What is left to do until a component whose removal was refused is retired: renamed, and without a price on any plan.
#[must_use]
pub fn plan_retirement(shop: &Shop<'_>, offering: &Offering, kind: &str) -> Vec<OfferingAction> {
    let notes = Notes::read(offering);
    let there = offering.components.iter().find(|component| component.kind == kind);
    let mut actions: Vec<OfferingAction> = there.and_then(|there| retire(&notes, &[], there)).into_iter().collect();
    let price = BTreeMap::from([(kind.to_owned(), Decimal::ZERO)]);
    if there.is_some() {
        actions
            .extend(offering.plans.iter().filter(|plan| !plan.archived).filter_map(|plan| set_prices(shop, offering, plan, &price, &[])));
    }
    actions
}

/// Where in its life each component of the offering is.
#[must_use]
pub fn stage(shop: &Shop<'_>, offering: &Offering, kind: &str) -> Stage {
    let notes = Notes::read(offering);
    let wanted = wanted_components(shop).into_iter().find(|want| want.kind == kind);
    match notes.components.get(kind) {
        _ if wanted.as_ref().and_then(|want| want.model.as_ref()).is_some_and(|model| shop.view.missing.contains_key(model)) => Stage::Held,
        _ if wanted.is_some() => Stage::Current,
        None => Stage::Foreign,
        Some(note) if note.refused.is_some() => Stage::Retired,
        Some(note) => match note.model.as_deref().map(|model| stage_of(shop, model)) {
            Some(stage @ (Stage::Gone | Stage::Held)) => stage,
            _ => Stage::Unused,
        },
    }
}

/// When the last usage of a model that went at `gone` is surely reported, so that its components may be removed.
#[must_use]
pub fn removable_from(gone: Timestamp, late_days: u32) -> Timestamp {
    let last_call = gone.checked_add(LAST_CALLS).unwrap_or(Timestamp::MAX);
    let closed = BillingMonth::of(last_call).next().start();
    closed.checked_add(SignedDuration::from_hours(24 * i64::from(late_days))).unwrap_or(Timestamp::MAX)
}

fn may_be_removed(shop: &Shop<'_>, note: &Note) -> bool {
    let due = match note.gone {
        Some(gone) => removable_from(gone, shop.late_days) <= shop.now,
        None => note.by_hand,
    };
    let again = note.refused.is_none_or(|refused| refused.checked_add(TRY_AGAIN).is_ok_and(|due| due <= shop.now));
    due && again && !shop.usage_owed
}

/// The plans whose prices are ours to keep, and the names of those that are not there.
fn managed_plans<'a>(settings: &OfferingConfig, offering: &'a Offering) -> (Vec<&'a Plan>, Vec<String>) {
    let living = || offering.plans.iter().filter(|plan| !plan.archived);
    if settings.plans.is_empty() {
        return (living().collect(), Vec::new());
    }
    let named = |name: &String| living().any(|plan| plan.name == *name);
    let absent = settings.plans.iter().filter(|name| !named(name)).cloned().collect();
    (living().filter(|plan| settings.plans.contains(&plan.name)).collect(), absent)
}

fn wanted_components(shop: &Shop<'_>) -> Vec<Wanted> {
    let settings = shop.settings;
    let mut wanted = Vec::new();
    let unit = unit_of(settings.token_unit);
    if settings.components.contains(&Family::PerModel) {
        for model in shop.view.models.iter().filter(|model| is_callable(shop, model)) {
            let sides = [
                (Direction::Input, "input", model.prices.map(|p| p.input)),
                (Direction::Output, "output", model.prices.and_then(|p| p.output)),
            ];
            for (direction, side, per_token) in
                sides.into_iter().filter(|(direction, ..)| !model.embedding || *direction == Direction::Input)
            {
                let charged = settings.billing == Billing::PerModel;
                let price = per_token.filter(|_| charged).map(|price| per_unit(price, settings.token_unit));
                let (label, description) = match price {
                    _ if !charged => (String::new(), "Counted to inform; charged as spend.".to_owned()),
                    None => (": not priced yet".to_owned(), "Not priced yet.".to_owned()),
                    Some(_) => (String::new(), String::new()),
                };
                wanted.push(Wanted {
                    kind: usage_component(&model.served_name, direction),
                    model: Some(model.served_name.clone()),
                    billing: BillingType::Usage,
                    name: format!("{} {side}{label}", shortened(&model.served_name)),
                    description,
                    unit: unit.to_owned(),
                    limit: None,
                    price: price.unwrap_or_default(),
                });
            }
        }
    }
    if settings.components.contains(&Family::Aggregate) {
        let by_spend = settings.billing == Billing::Spend;
        let informs = |charged: bool| if charged { "" } else { "Counted to inform; charged per model." };
        let rows = [
            ("input_tokens", "Input tokens, all models", unit, Decimal::ZERO),
            ("output_tokens", "Output tokens, all models", unit, Decimal::ZERO),
            ("spend", "Spend", settings.currency.as_str(), if by_spend { Decimal::ONE } else { Decimal::ZERO }),
        ];
        for (kind, name, unit, price) in rows {
            let description = match (kind, by_spend) {
                ("spend", true) => "What the calls of all models cost.",
                (_, true) => "Counted to inform; charged as spend.",
                (_, false) => informs(false),
            };
            wanted.push(Wanted {
                kind: kind.into(),
                model: None,
                billing: BillingType::Usage,
                name: name.into(),
                description: description.into(),
                unit: unit.into(),
                limit: None,
                price,
            });
        }
    }
    let limits = &settings.limits;
    let budget = LimitRule { default: limits.max_budget.default_after(shop.view.max_budget), ..limits.max_budget };
    let rows = [
        ("max_budget", "Budget per month", settings.currency.as_str(), budget),
        ("tpm_limit", "Tokens per minute", "tokens/min", limits.tpm_limit),
        ("rpm_limit", "Requests per minute", "requests/min", limits.rpm_limit),
    ];
    for (kind, name, unit, rule) in rows {
        wanted.push(Wanted {
            kind: kind.into(),
            model: None,
            billing: BillingType::Limit,
            name: name.into(),
            description: "A bound on what the project may use; it costs nothing.".into(),
            unit: unit.into(),
            limit: Some(rule),
            price: Decimal::ZERO,
        });
    }
    wanted
}

fn is_callable(shop: &Shop<'_>, model: &Model) -> bool {
    model.orderable || shop.settings.always_include.contains(&model.served_name)
}

/// Where a model is that some component of ours counts for.
fn stage_of(shop: &Shop<'_>, model: &str) -> Stage {
    if shop.view.is_stale(model, &shop.settings.always_include) {
        Stage::Gone
    } else if shop.view.model(model).is_some_and(|model| is_callable(shop, model)) {
        Stage::Current
    } else {
        Stage::Held
    }
}

fn unit_of(unit: TokenUnit) -> &'static str {
    match unit {
        TokenUnit::One => "tokens",
        TokenUnit::Thousand => "1k tokens",
        TokenUnit::Million => "1M tokens",
    }
}

fn per_unit(per_token: Decimal, unit: TokenUnit) -> Decimal {
    (per_token * Decimal::from(unit.tokens())).normalize()
}

fn per(unit: TokenUnit) -> &'static str {
    match unit {
        TokenUnit::One => "token",
        TokenUnit::Thousand => "1k tokens",
        TokenUnit::Million => "1M tokens",
    }
}

fn shortened(name: &str) -> String {
    const MOST: usize = LONGEST_NAME - 70;
    if name.chars().count() <= MOST {
        return name.to_owned();
    }
    name.chars().take(MOST - 1).chain(['…']).collect()
}

/// Writes the price into the name and the description of a priced component, with the date where it is yet to come.
fn say_price(shop: &Shop<'_>, managed: &[&Plan], want: &mut Wanted) {
    if want.model.is_none() || want.price.is_zero() && !want.description.is_empty() {
        return;
    }
    let (currency, per) = (&shop.settings.currency, per(shop.settings.token_unit));
    let price = format!("{} {currency} per {per}", want.price);
    let waiting = managed.iter().find_map(|plan| {
        let now = plan.prices.get(&want.kind).copied().unwrap_or_default();
        let later = plan.resources_count.is_none_or(|count| !count.is_zero()) || plan.future_prices.contains_key(&want.kind);
        (now != want.price && later).then_some(now)
    });
    match waiting {
        None => {
            want.name = format!("{}: {price}", want.name);
            want.description = format!("{price}.");
        }
        Some(now) => {
            let from = BillingMonth::of(shop.now).next().first_day();
            want.name = format!("{}: {price} from {from}", want.name);
            want.description = format!("{price} from {from}; {} {currency} until then.", now.normalize());
        }
    }
}

/// Limits are whole numbers on a Waldur of the first generation.
fn whole(value: Option<Decimal>) -> Option<i64> {
    value.and_then(|value| i64::try_from(value.floor()).ok())
}

fn create(want: &Wanted) -> NewComponent {
    let mut details = ComponentChange {
        name: Some(want.name.clone()),
        description: Some(want.description.clone()),
        billing_type: Some(want.billing.clone()),
        measured_unit: Some(want.unit.clone()),
        ..ComponentChange::default()
    };
    if let Some(rule) = &want.limit {
        details.limit_period = Some("month".into());
        details.min_value = Some(0);
        details.max_value = whole(rule.max).map(Some);
        details.default_limit = whole(rule.default).map(Some);
    }
    NewComponent { kind: want.kind.clone(), details }
}

fn change(want: &Wanted, there: &Component) -> Option<OfferingAction> {
    let text = |want: &str, there: &str| (want != there).then(|| want.to_owned());
    let mut change = ComponentChange {
        name: text(&want.name, &there.name),
        description: text(&want.description, &there.description),
        measured_unit: text(&want.unit, &there.measured_unit),
        ..ComponentChange::default()
    };
    if let Some(rule) = &want.limit {
        // What the configuration has no more is taken away, else Waldur goes on refusing orders by it.
        let number = |want: Option<Decimal>, there: Option<Decimal>| {
            let want = whole(want);
            (want.map(Decimal::from) != there).then_some(want)
        };
        change.max_value = number(rule.max, there.max_value);
        change.default_limit = number(rule.default, there.default_limit);
    }
    let uuid = there.uuid?;
    (change != ComponentChange::default()).then(|| OfferingAction::UpdateComponent { uuid, kind: want.kind.clone(), change })
}

/// Renames what could not be removed.
fn retire(notes: &Notes, wanted: &[Wanted], there: &Component) -> Option<OfferingAction> {
    let note = notes.components.get(&there.kind).filter(|note| note.refused.is_some())?;
    if wanted.iter().any(|want| want.kind == there.kind) {
        return None;
    }
    let name = retired_name(note, there);
    let change = ComponentChange { name: Some(name.clone()), ..ComponentChange::default() };
    let uuid = there.uuid?;
    (name != there.name).then(|| OfferingAction::UpdateComponent { uuid, kind: there.kind.clone(), change })
}

fn retired_name(note: &Note, there: &Component) -> String {
    let name = match &note.model {
        Some(model) => format!("{} {}", shortened(model), there.kind.rsplit(':').next().unwrap_or_default()),
        None => there.name.strip_prefix(RETIRED).unwrap_or(&there.name).to_owned(),
    };
    format!("{RETIRED}{name}").chars().take(LONGEST_NAME).collect()
}

fn next_notes(shop: &Shop<'_>, offering: &Offering, notes: &Notes, wanted: &[Wanted]) -> Notes {
    let mut next =
        Notes { owner: Some(shop.owner.to_owned()), components: BTreeMap::new(), max_budget: shop.view.max_budget, ..notes.clone() };
    for (kind, note) in &notes.components {
        if !offering.components.iter().any(|component| component.kind == *kind) {
            continue;
        }
        let mut note = note.clone();
        if let Some(model) = &note.model {
            note.gone = match stage_of(shop, model) {
                Stage::Gone => note.gone.or(Some(shop.now)),
                Stage::Current => None,
                _ => note.gone,
            };
        }
        next.components.insert(kind.clone(), note);
    }
    for want in wanted {
        next.components.insert(want.kind.clone(), Note::of(want.model.as_deref()));
    }
    let told = |name: &String| next.components.values().any(|note| note.gone.is_some() && note.model.as_ref() == Some(name));
    next.gone = shop.view.gone.iter().filter(|name| !told(name)).cloned().collect();
    next
}

/// The prices that are ours to set, by type. What is not in it keeps the price it has or will have.
fn our_prices(shop: &Shop<'_>, offering: &Offering, notes: &Notes, wanted: &[Wanted]) -> BTreeMap<String, Decimal> {
    let mut prices = BTreeMap::new();
    let is_there = |kind: &str| offering.components.iter().any(|component| component.kind == kind);
    for (kind, note) in &notes.components {
        let unused = note.model.as_ref().is_none_or(|model| stage_of(shop, model) == Stage::Current);
        if is_there(kind) && (note.refused.is_some() || unused) && !wanted.iter().any(|want| want.kind == *kind) {
            prices.insert(kind.clone(), Decimal::ZERO);
        }
    }
    for want in wanted {
        if want.is_settled(shop) || !is_there(&want.kind) {
            prices.insert(want.kind.clone(), want.price);
        }
    }
    prices
}

/// What a component will cost, as far as the plan says.
fn effective(plan: &Plan, kind: &str) -> Decimal {
    plan.future_prices.get(kind).or_else(|| plan.prices.get(kind)).copied().unwrap_or_default()
}

fn set_prices(
    shop: &Shop<'_>,
    offering: &Offering,
    plan: &Plan,
    ours: &BTreeMap<String, Decimal>,
    wanted: &[Wanted],
) -> Option<OfferingAction> {
    let differing: Vec<(String, Decimal, Decimal)> = ours
        .iter()
        .map(|(kind, price)| (kind.clone(), effective(plan, kind).normalize(), price.normalize()))
        .filter(|(_, is, want)| is != want)
        .collect();
    if differing.is_empty() {
        return None;
    }
    let kinds = offering.components.iter().map(|component| &component.kind).chain(wanted.iter().map(|want| &want.kind));
    let used = plan.resources_count.is_none_or(|count| !count.is_zero());
    let prices = kinds.map(|kind| {
        let is = effective(plan, kind);
        let price = match ours.get(kind) {
            Some(price) if price.is_zero() && !is.is_zero() && !plan.future_prices.contains_key(kind) && (used || shop.stubborn) => NUDGE,
            Some(price) => *price,
            None => is,
        };
        (kind.clone(), price)
    });
    Some(OfferingAction::SetPrices { plan: plan.uuid, name: plan.name.clone(), prices: prices.collect(), changes: differing })
}

fn pending(plan: &Plan, ours: &BTreeMap<String, Decimal>) -> Vec<Finding> {
    let waits = |(kind, price): (&String, &Decimal)| {
        let now = plan.prices.get(kind).copied().unwrap_or_default();
        let then = plan.future_prices.get(kind).copied()?;
        (then == *price && now != then).then(|| Finding::Pending {
            kind: kind.clone(),
            plan: plan.name.clone(),
            now: now.normalize(),
            then: then.normalize(),
        })
    };
    ours.iter().filter_map(waits).collect()
}

/// The form with our option in it, where it differs; every other option is kept.
fn form(shop: &Shop<'_>, there: &Value) -> Option<Value> {
    let current = there.pointer("/options/models");
    let mut option = Map::new();
    option.insert("type".into(), json!("select_string_multi"));
    option.insert("label".into(), json!("Models"));
    option.insert("required".into(), json!(true));
    option.insert("choices".into(), json!(choices(shop, current)));
    let settled = shop.view.orderable().iter().all(|name| shop.view.is_settled(name));
    let help = match current.and_then(|current| current.get("help_text")) {
        // The prices of what is missed are not known any more, and nothing about it is to change yet.
        Some(help) if !settled => help.clone(),
        _ => json!(help_text(shop)),
    };
    option.insert("help_text".into(), help);
    let option = Value::Object(option);
    if current == Some(&option) && in_order(there) {
        return None;
    }
    let mut form = there.as_object().cloned().unwrap_or_default();
    let mut options = form.remove("options").and_then(|options| options.as_object().cloned()).unwrap_or_default();
    let mut order = form.remove("order").and_then(|order| order.as_array().cloned()).unwrap_or_default();
    options.insert(OPTION.into(), option);
    if !order.iter().any(|name| name == OPTION) {
        order.push(json!(OPTION));
    }
    form.insert("order".into(), Value::Array(order));
    form.insert("options".into(), Value::Object(options));
    Some(Value::Object(form))
}

fn in_order(form: &Value) -> bool {
    form.get("order").and_then(Value::as_array).is_some_and(|order| order.iter().any(|name| name == OPTION))
}

/// What there is stays in its order; what is new comes after it.
fn choices(shop: &Shop<'_>, current: Option<&Value>) -> Vec<String> {
    let sold: &BTreeSet<String> = shop.view.orderable();
    let before = current.and_then(|current| current.get("choices")).and_then(Value::as_array);
    let mut choices: Vec<String> = Vec::new();
    let add = |choices: &mut Vec<String>, name: &str| {
        if sold.contains(name) && !choices.iter().any(|there| there == name) {
            choices.push(name.to_owned());
        }
    };
    for name in before.into_iter().flatten().filter_map(Value::as_str) {
        add(&mut choices, name);
    }
    for model in &shop.view.models {
        add(&mut choices, &model.served_name);
    }
    for name in sold {
        add(&mut choices, name);
    }
    if !choices.is_empty() {
        choices.push(ALL.to_owned());
    }
    choices
}

fn help_text(shop: &Shop<'_>) -> String {
    let (currency, unit) = (&shop.settings.currency, shop.settings.token_unit);
    let sold = shop.view.orderable();
    let mut text = format!(
        "The models that the key may call. `{ALL}` stands for every model, later ones included. Prices in {currency} per {}: ",
        per(unit)
    );
    let lines = shop.view.models.iter().filter(|model| sold.contains(&model.served_name)).map(|model| match model.prices {
        None => format!("{} not priced yet", model.served_name),
        Some(prices) => {
            let output = prices.output.map(|output| format!(", output {}", per_unit(output, unit))).unwrap_or_default();
            format!("{} input {}{output}", model.served_name, per_unit(prices.input, unit))
        }
    });
    text.push_str(&lines.collect::<Vec<_>>().join("; "));
    text.push('.');
    text
}
