//! What happens to the components of a model that has gone, and what is never touched.
#![allow(clippy::unwrap_used)]

use serde_json::json;
use waldur_client::ComponentChange;

use super::*;
use crate::config;

const OWNER: &str = "icarus";
const OFFERING: Uuid = Uuid::from_u128(0x0d9a_1e3b_0000_4a2b_9f11_0000_0000_0042);
const NOW: &str = "2026-11-10T09:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}
fn dec(text: &str) -> Decimal {
    text.parse().unwrap()
}

/// An offering that is charged per model and per 1k tokens; `more` is added to its settings.
fn settings(more: &str) -> OfferingConfig {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yml");
    let text = format!(
        "owner: {OWNER}\nwaldur: {{api_url: 'http://127.0.0.1:1/api/', token_file: /t}}\ngateway: {{url: 'http://127.0.0.1:2', public_url: 'https://llm.example.org', key_file: /k}}\n\
         catalogue: {{file: /c}}\nsecrets: {{store: directory, path: /s}}\nofferings:\n  - uuid: {OFFERING}\n    token_unit: 1k\n    limits: {{allow_unlimited: true}}\n{more}"
    );
    std::fs::write(&file, text).unwrap();
    config::load(Some(&file), &[]).unwrap().config.offerings.remove(0)
}

/// A catalogue of these models, each with prices.
fn view(models: &[&str]) -> View {
    let mut text = String::from("inference_models:\n");
    for name in models {
        text.push_str(&format!(
            "  - {{name: m, served_name: {name}, litellm_model_info: {{input_cost_per_token: 2.0e-07, output_cost_per_token: 4.0e-07}}}}\n"
        ));
    }
    View::of(crate::catalogue::parse(&text, "catalogue.yml").unwrap())
}

fn view_of_both() -> View {
    view(&["kestrel-8b", "heron-70b"])
}

/// The same after `heron-70b` went: its hold is over.
fn without_heron() -> View {
    let mut view = view(&["kestrel-8b"]);
    view.gone.insert("heron-70b".into());
    view
}

fn shop<'a>(settings: &'a OfferingConfig, view: &'a View, now: &str) -> Shop<'a> {
    Shop { owner: OWNER, settings, view, now: at(now), late_days: 3, usage_owed: false, stubborn: false }
}

/// Carries out what Waldur would: components, names, prices, notes.
fn carry_out(offering: &mut Offering, actions: &[OfferingAction]) {
    fn set(there: &mut Component, change: &ComponentChange) {
        let bound = |change: Option<Option<i64>>, there: Option<Decimal>| change.map_or(there, |value| value.map(Decimal::from));
        there.name = change.name.clone().unwrap_or_else(|| there.name.clone());
        there.description = change.description.clone().unwrap_or_else(|| there.description.clone());
        there.billing_type = change.billing_type.clone().unwrap_or_else(|| there.billing_type.clone());
        there.measured_unit = change.measured_unit.clone().unwrap_or_else(|| there.measured_unit.clone());
        there.max_value = bound(change.max_value, there.max_value);
        there.default_limit = bound(change.default_limit, there.default_limit);
    }
    for action in actions {
        match action {
            OfferingAction::Note(notes) => offering.backend_metadata = notes.merged_into(offering),
            OfferingAction::CreateComponent(new) => {
                let uuid = Uuid::from_u128(1 + offering.components.len() as u128);
                let mut component = Component { uuid: Some(uuid), kind: new.kind.clone(), ..Component::default() };
                set(&mut component, &new.details);
                offering.components.push(component);
            }
            OfferingAction::UpdateComponent { kind, change, .. } => {
                set(offering.components.iter_mut().find(|there| there.kind == *kind).unwrap(), change);
            }
            OfferingAction::SetPrices { plan, prices, .. } => {
                offering.plans.iter_mut().find(|there| there.uuid == *plan).unwrap().prices = prices.clone();
            }
            OfferingAction::SetOptions(form) => offering.options = form.clone(),
            OfferingAction::SetResourceOptions(form) => offering.resource_options = form.clone(),
            OfferingAction::RemoveComponent { kind, .. } => offering.components.retain(|there| there.kind != *kind),
        }
    }
}

/// One pass over the offering.
fn keep(offering: &mut Offering, shop: &Shop<'_>) {
    let plan = plan_offering(shop, offering).unwrap();
    carry_out(offering, &plan.actions);
}

/// An offering with the plans `Standard` and `Research`, which sells kestrel-8b and heron-70b.
fn sold(settings: &OfferingConfig) -> Offering {
    let plan = |n: u128, name: &str, archived: bool| Plan {
        uuid: Uuid::from_u128(n),
        name: name.into(),
        archived,
        prices: BTreeMap::new(),
        future_prices: BTreeMap::new(),
        resources_count: Some(Decimal::ZERO),
    };
    let json = json!({"uuid": OFFERING.to_string(), "name": "LLM access"});
    let mut offering: Offering = serde_json::from_value(json).unwrap();
    offering.plans = vec![plan(0x51, "Standard", false), plan(0x52, "Research", false), plan(0x53, "Old", true)];
    let view = view_of_both();
    let shop = shop(settings, &view, "2026-11-01T00:00:00Z");
    keep(&mut offering, &shop);
    assert_eq!(plan_offering(&shop, &offering).unwrap(), OfferingPlan::default(), "an offering as it should be is left alone");
    offering
}

/// Changes what is noted about a component.
fn note(offering: &mut Offering, kind: &str, change: impl FnOnce(&mut Note)) {
    let mut notes = Notes::read(offering);
    change(notes.components.get_mut(kind).unwrap());
    offering.backend_metadata = notes.merged_into(offering);
}

fn noted(offering: &Offering, kind: &str) -> Note {
    Notes::read(offering).components.get(kind).cloned().unwrap()
}

fn removed(plan: &OfferingPlan) -> Vec<&str> {
    let removed = plan.actions.iter().filter_map(|action| match action {
        OfferingAction::RemoveComponent { kind, .. } => Some(kind.as_str()),
        _ => None,
    });
    removed.collect()
}

/// What a plan of the offering will cost after this: by the plan's name and the component's type.
fn priced<'a>(actions: &'a [OfferingAction], plan: &str) -> Option<&'a BTreeMap<String, Decimal>> {
    actions.iter().find_map(|action| match action {
        OfferingAction::SetPrices { name, prices, .. } if name == plan => Some(prices),
        _ => None,
    })
}

#[test]
fn usage_of_a_model_that_went_can_be_reported_until_its_last_month_is_closed() {
    for (gone, from) in [
        ("2026-11-10T09:00:00Z", "2026-12-04T00:00:00Z"),
        ("2026-11-29T23:59:59Z", "2026-12-04T00:00:00Z"),
        // The last calls may be December's.
        ("2026-11-30T00:00:00Z", "2027-01-04T00:00:00Z"),
        ("2026-12-31T12:00:00Z", "2027-02-04T00:00:00Z"),
    ] {
        assert_eq!(removable_from(at(gone), 3), at(from), "{gone}");
        assert_eq!(removable_from(at(gone), 0), at(from) - SignedDuration::from_hours(72), "{gone}");
    }
}

#[test]
fn a_component_goes_when_the_usage_of_its_model_is_reported_and_not_a_second_before() {
    let settings = settings("");
    let mut offering = sold(&settings);
    let view = without_heron();
    keep(&mut offering, &shop(&settings, &view, NOW));
    assert_eq!(noted(&offering, "heron-70b:input").gone, Some(at(NOW)));
    assert_eq!(noted(&offering, "kestrel-8b:input").gone, None);
    let plan = |now: &str, owed: bool| plan_offering(&Shop { usage_owed: owed, ..shop(&settings, &view, now) }, &offering).unwrap();
    assert_eq!(plan("2026-12-03T23:59:59Z", false), OfferingPlan::default(), "nothing changes until then, nor what it costs");
    assert_eq!(removed(&plan("2026-12-04T00:00:00Z", false)), ["heron-70b:input", "heron-70b:output"]);
    assert_eq!(removed(&plan("2026-12-04T00:00:00Z", true)), [] as [&str; 0], "some of its usage could not be reported");
    let uuid = offering.components.iter().find(|there| there.kind == "heron-70b:input").unwrap().uuid.unwrap();
    assert!(
        plan("2026-12-04T00:00:00Z", false).actions.contains(&OfferingAction::RemoveComponent { uuid, kind: "heron-70b:input".into() })
    );
    // The file has it again: it is sold as before, and its time begins anew when it goes again.
    let back = view_of_both();
    keep(&mut offering, &shop(&settings, &back, "2026-12-05T00:00:00Z"));
    assert_eq!(noted(&offering, "heron-70b:input"), Note::of(Some("heron-70b")));
}

#[test]
fn a_model_that_nobody_has_proven_gone_keeps_its_components_and_its_price_and_one_that_may_not_be_called_its_time() {
    let settings = settings("");
    let mut offering = sold(&settings);
    // A catalogue without it, and its hold is not over: as after a restart.
    let missed = view(&["kestrel-8b"]);
    let plan = plan_offering(&shop(&settings, &missed, NOW), &offering).unwrap();
    assert!(plan.actions.iter().all(|action| matches!(action, OfferingAction::SetOptions(_) | OfferingAction::SetResourceOptions(_))));
    assert_eq!(plan.findings, []);
    keep(&mut offering, &shop(&settings, &without_heron(), NOW));
    // The file has it again, but nobody may call it: there is no usage to wait for any longer than before.
    let closed = "inference_models:\n  - {name: k, served_name: kestrel-8b}\n  - {name: h, served_name: heron-70b, orderable: false}\n";
    let closed = View::of(crate::catalogue::parse(closed, "catalogue.yml").unwrap());
    keep(&mut offering, &shop(&settings, &closed, "2026-11-20T00:00:00Z"));
    assert_eq!(noted(&offering, "heron-70b:input").gone, Some(at(NOW)));
    // It goes for good: since the first time.
    keep(&mut offering, &shop(&settings, &without_heron(), "2026-11-25T00:00:00Z"));
    assert_eq!(noted(&offering, "heron-70b:input").gone, Some(at(NOW)));
}

#[test]
fn a_removal_that_waldur_refused_is_tried_again_after_a_day_and_the_component_is_renamed_and_costs_nothing() {
    let settings = settings("");
    let mut offering = sold(&settings);
    let view = without_heron();
    keep(&mut offering, &shop(&settings, &view, NOW));
    let before = offering.plans[0].prices.clone();
    assert_eq!(before["heron-70b:input"], dec("0.0002"), "it costs what it cost until its usage is reported");
    note(&mut offering, "heron-70b:input", |note| {
        note.refused = Some(at("2026-12-04T08:00:00Z"));
        note.reason = "it has usage".into();
    });
    let plan = plan_offering(&shop(&settings, &view, "2026-12-05T07:59:59Z"), &offering).unwrap();
    assert_eq!(removed(&plan), ["heron-70b:output"]);
    assert_eq!(plan.findings, [Finding::Retired { kind: "heron-70b:input".into(), reason: "it has usage".into() }]);
    for name in ["Standard", "Research"] {
        let prices = priced(&plan.actions, name).unwrap();
        let expected = BTreeMap::from([("heron-70b:input".to_owned(), Decimal::ZERO)]);
        assert_eq!(*prices, before.clone().into_iter().chain(expected).collect::<BTreeMap<_, _>>(), "every other price stays");
    }
    assert!(priced(&plan.actions, "Old").is_none(), "nobody can order an archived plan");
    // What the loop does right after the refusal is the same.
    let shop_then = shop(&settings, &view, "2026-12-04T08:00:00Z");
    let retired = plan_retirement(&shop_then, &offering, "heron-70b:input");
    assert_eq!(retired.len(), 3);
    carry_out(&mut offering, &retired);
    let names: Vec<&str> = offering.components.iter().map(|there| there.name.as_str()).filter(|name| name.starts_with(RETIRED)).collect();
    assert_eq!(names, ["[retired] heron-70b input"]);
    assert_eq!(offering.plans[0].prices["heron-70b:input"], Decimal::ZERO);
    assert!(plan_retirement(&shop_then, &offering, "heron-70b:input").is_empty(), "it is retired once");
    assert!(plan_retirement(&shop_then, &offering, "no-such:input").is_empty());
    let plan = plan_offering(&shop(&settings, &view, "2026-12-05T08:00:00Z"), &offering).unwrap();
    assert_eq!(removed(&plan), ["heron-70b:input", "heron-70b:output"]);
    // It is sold again: the mark goes.
    let back = view_of_both();
    keep(&mut offering, &shop(&settings, &back, "2026-12-05T08:00:00Z"));
    assert!(offering.components.iter().all(|there| !there.name.starts_with(RETIRED)));
    assert_eq!(offering.plans[0].prices["heron-70b:input"], dec("0.0002"));
}

#[test]
fn what_an_operator_wants_removed_goes_when_asked_for_and_what_nobody_asked_for_stays() {
    let per_model = settings("");
    let both = settings("    components: [per_model, aggregate]\n");
    let mut offering = sold(&both);
    // The sums are not configured any more. They cost nothing, and stay for those who read them.
    let view = view_of_both();
    let plan = plan_offering(&shop(&per_model, &view, NOW), &offering).unwrap();
    assert_eq!(removed(&plan), [] as [&str; 0]);
    note(&mut offering, "spend", |note| note.by_hand = true);
    let plan = |owed: bool| plan_offering(&Shop { usage_owed: owed, ..shop(&per_model, &view, NOW) }, &offering).unwrap();
    assert_eq!((removed(&plan(false)), removed(&plan(true))), (vec!["spend"], vec![]));
}

#[test]
fn a_family_that_is_not_sold_any_more_costs_nothing() {
    let by_spend = settings("    components: [per_model, aggregate]\n    billing: spend\n");
    let mut offering = sold(&by_spend);
    assert_eq!((offering.plans[0].prices["spend"], offering.plans[0].prices["heron-70b:input"]), (Decimal::ONE, Decimal::ZERO));
    // Of another's component the price is nobody's business here.
    for plan in &mut offering.plans {
        plan.prices.insert("support".into(), dec("7"));
        plan.prices.insert("heron-70b:input".into(), dec("0.3"));
    }
    offering.components.push(Component { uuid: Some(Uuid::from_u128(99)), kind: "support".into(), ..Component::default() });
    let per_model = settings("");
    let view = without_heron();
    let plan = plan_offering(&shop(&per_model, &view, NOW), &offering).unwrap();
    let prices = priced(&plan.actions, "Standard").unwrap();
    assert_eq!((prices["spend"], prices["support"], prices["kestrel-8b:input"]), (Decimal::ZERO, dec("7"), dec("0.0002")));
    assert_eq!(prices["heron-70b:input"], dec("0.3"), "a model that has gone costs what it cost");
    // Only the plans that are named are kept.
    let one = settings("    plans: [Research, Nowhere]\n");
    let plan = plan_offering(&shop(&one, &view, NOW), &offering).unwrap();
    assert!(priced(&plan.actions, "Standard").is_none() && priced(&plan.actions, "Research").is_some());
    assert_eq!(plan.findings, [Finding::NoSuchPlan("Nowhere".into())]);
}

#[test]
fn what_is_left_of_a_family_stays_where_its_model_came_back() {
    let per_model = settings("");
    let sums = settings("    components: [aggregate]\n    billing: spend\n");
    let mut offering = sold(&per_model);
    keep(&mut offering, &shop(&per_model, &without_heron(), "2026-09-10T00:00:00Z"));
    // Since then only the sums are sold, and the file has the model again.
    let view = view_of_both();
    let plan = plan_offering(&shop(&sums, &view, NOW), &offering).unwrap();
    assert_eq!(removed(&plan), [] as [&str; 0]);
    carry_out(&mut offering, &plan.actions);
    assert_eq!(noted(&offering, "heron-70b:input").gone, None);
    assert_eq!(offering.plans[0].prices["heron-70b:input"], Decimal::ZERO);
    // Also where nothing else is left there.
    offering.components.retain(|there| there.kind == "heron-70b:input");
    offering.plans[0].prices.insert("heron-70b:input".into(), dec("7"));
    let plan = plan_offering(&shop(&sums, &view, NOW), &offering).unwrap();
    assert_eq!(priced(&plan.actions, "Standard").unwrap()["heron-70b:input"], Decimal::ZERO);
}

#[test]
fn a_price_of_zero_is_led_up_to_only_where_waldur_would_go_on_charging_the_old_one() {
    let settings = settings("");
    let mut offering = sold(&settings);
    note(&mut offering, "heron-70b:input", |note| note.refused = Some(at(NOW)));
    let view = without_heron();
    let price = |offering: &Offering, stubborn: bool| {
        let shop = Shop { stubborn, ..shop(&settings, &view, NOW) };
        let actions = plan_retirement(&shop, offering, "heron-70b:input");
        let prices = priced(&actions, "Standard").cloned();
        prices.map(|prices| (prices["heron-70b:input"], prices["heron-70b:output"]))
    };
    let output = dec("0.0004");
    assert_eq!(price(&offering, false), Some((Decimal::ZERO, output)), "no resource has the plan");
    assert_eq!(price(&offering, true), Some((NUDGE, output)), "a zero was not kept");
    for count in [None, Some(Decimal::ONE)] {
        offering.plans[0].resources_count = count;
        assert_eq!(price(&offering, false), Some((NUDGE, output)), "{count:?}");
    }
    // A price that is to come already takes the zero.
    offering.plans[0].future_prices.insert("heron-70b:input".into(), NUDGE);
    assert_eq!(price(&offering, false), Some((Decimal::ZERO, output)));
    offering.plans[0].future_prices.insert("heron-70b:input".into(), Decimal::ZERO);
    assert_eq!(price(&offering, false), None);
}

#[test]
fn a_component_that_somebody_else_made_is_left_alone_and_named() {
    let settings = settings("");
    let mut offering = sold(&settings);
    for there in offering.components.iter_mut().filter(|there| there.kind == "heron-70b:input") {
        there.billing_type = BillingType::Fixed;
        there.name = "Licence".into();
    }
    let gone = "2026-09-10T00:00:00Z";
    note(&mut offering, "heron-70b:input", |note| note.gone = Some(at(gone)));
    for plan in &mut offering.plans {
        plan.prices.insert("heron-70b:input".into(), dec("7"));
    }
    let view = view_of_both();
    let plan = plan_offering(&shop(&settings, &view, NOW), &offering).unwrap();
    assert_eq!(plan.findings, [Finding::NotOurs { kind: "heron-70b:input".into(), billing: BillingType::Fixed }]);
    let mut after = offering.clone();
    carry_out(&mut after, &plan.actions);
    assert_eq!((&after.components, &after.plans), (&offering.components, &offering.plans));
    assert!(!Notes::read(&after).components.contains_key("heron-70b:input"), "it is ours no longer");
}

#[test]
fn an_offering_of_another_agent_and_one_without_a_readable_catalogue_are_left_alone() {
    let settings = settings("");
    let offering = sold(&settings);
    let mut gone = without_heron();
    let refused = plan_offering(&Shop { owner: "daedalus", ..shop(&settings, &gone, "2027-03-01T00:00:00Z") }, &offering);
    assert!(refused.unwrap_err().contains("kept by the agent of \"icarus\""));
    gone.readable = false;
    assert_eq!(plan_offering(&shop(&settings, &gone, "2027-03-01T00:00:00Z"), &offering).unwrap(), OfferingPlan::default());
}

#[test]
fn notes_follow_what_is_there_and_a_held_catalogue_changes_no_budget() {
    let settings = settings("");
    let mut offering = sold(&settings);
    let budget = |amount: &str, held: bool| {
        let mut view = without_heron();
        view.gone.insert("qwen2.5-0.5b".into());
        let mut catalogue = (*view.catalogue).clone();
        catalogue.max_budget = Some(dec(amount));
        view.catalogue = std::sync::Arc::new(catalogue);
        view.held = held.then(|| crate::catalogue::Shrink { missing: BTreeSet::new(), of: 2, digest: String::new() });
        view
    };
    let view = budget("50", false);
    keep(&mut offering, &shop(&settings, &view, NOW));
    let notes = Notes::read(&offering);
    assert_eq!((notes.owner.as_deref(), notes.max_budget), (Some(OWNER), Some(dec("50"))));
    assert_eq!(notes.gone, BTreeSet::from(["qwen2.5-0.5b".to_owned()]), "of the other its components say so");
    let view = budget("5", true);
    keep(&mut offering, &shop(&settings, &view, NOW));
    assert_eq!(Notes::read(&offering).max_budget, Some(dec("50")));
    // What somebody removed needs no note; what has no component any more is still told to teams.
    let view = budget("50", false);
    offering.components.retain(|there| !there.kind.starts_with("heron-70b"));
    keep(&mut offering, &shop(&settings, &view, NOW));
    let notes = Notes::read(&offering);
    assert!(!notes.components.contains_key("heron-70b:input") && notes.components.contains_key("kestrel-8b:input"));
    assert_eq!(notes.gone, BTreeSet::from(["heron-70b".to_owned(), "qwen2.5-0.5b".to_owned()]));
}

#[test]
fn every_component_is_somewhere_in_its_life() {
    let per_model = settings("");
    let both = settings("    components: [per_model, aggregate]\n");
    let mut offering = sold(&both);
    offering.components.push(Component { uuid: Some(Uuid::from_u128(99)), kind: "support".into(), ..Component::default() });
    let (all, gone) = (view_of_both(), without_heron());
    let mut missing = view_of_both();
    missing.missing.insert("heron-70b".into(), at(NOW));
    let stages = |settings: &OfferingConfig, view: &View, offering: &Offering| {
        let shop = shop(settings, view, NOW);
        ["kestrel-8b:input", "heron-70b:input", "spend", "support"].map(|kind| stage(&shop, offering, kind))
    };
    use Stage::{Current, Foreign, Gone, Held, Retired, Unused};
    assert_eq!(stages(&both, &all, &offering), [Current, Current, Current, Foreign]);
    assert_eq!(stages(&per_model, &missing, &offering), [Current, Held, Unused, Foreign]);
    assert_eq!(stages(&per_model, &gone, &offering), [Current, Gone, Unused, Foreign]);
    assert_eq!(stages(&per_model, &view(&["kestrel-8b"]), &offering), [Current, Held, Unused, Foreign]);
    note(&mut offering, "heron-70b:input", |note| note.refused = Some(at(NOW)));
    assert_eq!(stages(&per_model, &gone, &offering), [Current, Retired, Unused, Foreign]);
}

/// The details of every component that would be made, by type.
fn made(plan: &OfferingPlan) -> BTreeMap<&str, &ComponentChange> {
    let made = plan.actions.iter().filter_map(|action| match action {
        OfferingAction::CreateComponent(new) => Some((new.kind.as_str(), &new.details)),
        _ => None,
    });
    made.collect()
}

/// Name, description and unit.
fn shown(details: &ComponentChange) -> [&str; 3] {
    [&details.name, &details.description, &details.measured_unit].map(|text| text.as_deref().unwrap())
}

fn empty() -> Offering {
    let json = json!({"uuid": OFFERING.to_string(), "name": "LLM access"});
    serde_json::from_value(json).unwrap()
}

const CATALOGUE: &str = "inference_models:
  - {name: k, served_name: kestrel-8b, litellm_model_info: {input_cost_per_token: 2.0e-07, output_cost_per_token: 4.0e-07}}
  - {name: n, served_name: new-1b}
  - {name: f, served_name: free-1b, litellm_model_info: {input_cost_per_token: 0, output_cost_per_token: 0}}
  - {name: e, served_name: embed, runtime: tei, litellm_model_info: {input_cost_per_token: 2.0e-08}}
";

#[test]
fn a_customer_reads_the_price_of_every_component_where_it_is_chosen() {
    let view = View::of(crate::catalogue::parse(CATALOGUE, "catalogue.yml").unwrap());
    let per_model = settings("    always_include: [embed]\n    components: [per_model, aggregate]\n");
    let plan = plan_offering(&shop(&per_model, &view, NOW), &empty()).unwrap();
    let made_here = made(&plan);
    for (kind, expected) in [
        ("kestrel-8b:input", ["kestrel-8b input: 0.0002 EUR per 1k tokens", "0.0002 EUR per 1k tokens.", "1k tokens"]),
        ("kestrel-8b:output", ["kestrel-8b output: 0.0004 EUR per 1k tokens", "0.0004 EUR per 1k tokens.", "1k tokens"]),
        ("new-1b:input", ["new-1b input: not priced yet", "Not priced yet.", "1k tokens"]),
        ("free-1b:output", ["free-1b output: 0 EUR per 1k tokens", "0 EUR per 1k tokens.", "1k tokens"]),
        ("embed:input", ["embed input: 0.00002 EUR per 1k tokens", "0.00002 EUR per 1k tokens.", "1k tokens"]),
        ("input_tokens", ["Input tokens, all models", "Counted to inform; charged per model.", "1k tokens"]),
        ("spend", ["Spend", "Counted to inform; charged per model.", "EUR"]),
        ("max_budget", ["Budget per month", "A bound on what the project may use; it costs nothing.", "EUR"]),
        ("tpm_limit", ["Tokens per minute", "A bound on what the project may use; it costs nothing.", "tokens/min"]),
    ] {
        assert_eq!(shown(made_here[kind]), expected, "{kind}");
    }
    assert!(!made_here.contains_key("embed:output"), "an embedder has no output");
    let by_spend = settings("    components: [per_model, aggregate]\n    billing: spend\n");
    let plan = plan_offering(&shop(&by_spend, &view, NOW), &empty()).unwrap();
    let made_here = made(&plan);
    for (kind, expected) in [
        ("kestrel-8b:input", ["kestrel-8b input", "Counted to inform; charged as spend.", "1k tokens"]),
        ("new-1b:input", ["new-1b input", "Counted to inform; charged as spend.", "1k tokens"]),
        ("output_tokens", ["Output tokens, all models", "Counted to inform; charged as spend.", "1k tokens"]),
        ("spend", ["Spend", "What the calls of all models cost.", "EUR"]),
    ] {
        assert_eq!(shown(made_here[kind]), expected, "{kind}");
    }
    for (unit, price, of) in [("1", "0.0000002 EUR per token", "tokens"), ("1M", "0.2 EUR per 1M tokens", "1M tokens")] {
        let mut other = settings("");
        other.token_unit = if unit == "1" { TokenUnit::One } else { TokenUnit::Million };
        let plan = plan_offering(&shop(&other, &view, NOW), &empty()).unwrap();
        assert_eq!(shown(made(&plan)["kestrel-8b:input"]), [&format!("kestrel-8b input: {price}"), &format!("{price}."), of]);
    }
}

#[test]
fn a_long_name_of_a_model_is_cut_so_that_its_price_fits() {
    let (fits, long) = ("m".repeat(80), "m".repeat(81));
    assert_eq!((shortened(&fits), shortened(&long)), (fits.clone(), format!("{}…", "m".repeat(79))));
}

#[test]
fn a_price_that_waits_for_the_first_of_the_month_says_so() {
    let settings = settings("    plans: [Standard]\n");
    let offering = sold(&settings);
    let dearer = CATALOGUE.replace("input_cost_per_token: 2.0e-07", "input_cost_per_token: 3.0e-07");
    let view = View::of(crate::catalogue::parse(&dearer, "catalogue.yml").unwrap());
    let says = |resources: Option<Decimal>, future: Option<&str>| {
        let mut offering = offering.clone();
        offering.plans[0].resources_count = resources;
        offering.plans[0].future_prices.extend(future.map(|price| ("kestrel-8b:input".to_owned(), dec(price))));
        let plan = plan_offering(&shop(&settings, &view, NOW), &offering).unwrap();
        let change = plan.actions.iter().find_map(|action| match action {
            OfferingAction::UpdateComponent { kind, change, .. } if kind == "kestrel-8b:input" => Some(change.clone()),
            _ => None,
        });
        let change = change.unwrap();
        (change.name.unwrap(), change.description.unwrap(), plan.findings)
    };
    let (name, text) = ("kestrel-8b input: 0.0003 EUR per 1k tokens", "0.0003 EUR per 1k tokens");
    let waits = (format!("{name} from 2026-12-01"), format!("{text} from 2026-12-01; 0.0002 EUR until then."));
    let pending = Finding::Pending { kind: "kestrel-8b:input".into(), plan: "Standard".into(), now: dec("0.0002"), then: dec("0.0003") };
    assert_eq!(
        says(Some(Decimal::ZERO), None),
        (name.to_owned(), format!("{text}."), vec![]),
        "it holds at once where nobody has the plan"
    );
    assert_eq!(says(Some(Decimal::ONE), None), (waits.0.clone(), waits.1.clone(), vec![]));
    assert_eq!(says(None, None), (waits.0.clone(), waits.1.clone(), vec![]), "nobody knows whether somebody has it");
    assert_eq!(says(Some(Decimal::ZERO), Some("0.0003")), (waits.0.clone(), waits.1.clone(), vec![pending.clone()]));
    assert_eq!(says(Some(Decimal::ONE), Some("0.0001")), (waits.0, waits.1, vec![]), "that is not what will hold");
    assert_eq!(pending.to_string(), "the price of kestrel-8b:input on plan Standard is 0.0002, and 0.0003 from the 1st");
    // A price that holds already waits for nothing.
    let mut settled = offering.clone();
    settled.plans[0].future_prices.insert("kestrel-8b:input".into(), dec("0.0002"));
    let both = view_of_both();
    assert_eq!(plan_offering(&shop(&settings, &both, NOW), &settled).unwrap(), OfferingPlan::default());
}

#[test]
fn bounds_of_a_limit_follow_the_settings_and_the_budget_of_the_catalogue() {
    let mut settings = settings("");
    settings.limits.max_budget = LimitRule { default: Some(dec("10")), max: Some(dec("100.5")) };
    settings.limits.tpm_limit = LimitRule { default: None, max: Some(dec("9000")) };
    let mut view = view_of_both();
    let mut catalogue = (*view.catalogue).clone();
    catalogue.max_budget = Some(dec("40"));
    view.catalogue = std::sync::Arc::new(catalogue);
    let plan = plan_offering(&shop(&settings, &view, NOW), &empty()).unwrap();
    let bounds = |kind: &str| {
        let details = made(&plan)[kind];
        (details.limit_period.as_deref(), details.min_value, details.max_value, details.default_limit)
    };
    assert_eq!(bounds("max_budget"), (Some("month"), Some(0), Some(Some(100)), Some(Some(40))));
    assert_eq!(bounds("tpm_limit"), (Some("month"), Some(0), Some(Some(9000)), None));
    assert_eq!(bounds("kestrel-8b:input"), (None, None, None, None));
    // What somebody changed is set right, and what the settings have no more is taken away.
    let mut offering = empty();
    keep(&mut offering, &shop(&settings, &view, NOW));
    assert!(plan_offering(&shop(&settings, &view, NOW), &offering).unwrap().actions.is_empty());
    settings.limits.tpm_limit.max = None;
    for there in &mut offering.components {
        match there.kind.as_str() {
            "max_budget" => there.max_value = Some(dec("7")),
            "kestrel-8b:input" => there.measured_unit = "tokens".into(),
            "kestrel-8b:output" => there.description = "Free!".into(),
            _ => {}
        }
    }
    let lines: Vec<String> =
        plan_offering(&shop(&settings, &view, NOW), &offering).unwrap().actions.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "change component kestrel-8b:input: unit → \"1k tokens\"",
            "change component kestrel-8b:output: description → \"0.0004 EUR per 1k tokens.\"",
            "change component max_budget: most → 100",
            "change component tpm_limit: most → none",
        ]
    );
}

#[test]
fn the_order_form_offers_what_is_sold_and_keeps_the_options_of_others() {
    let settings = settings("");
    let form_of = |view: &View, there: Value| form(&shop(&settings, view, NOW), &there);
    let help = "The models that the key may call. `all` stands for every model, later ones included. Prices in EUR per 1k tokens: \
                heron-70b input 0.0002, output 0.0004; kestrel-8b input 0.0002, output 0.0004.";
    let option = |choices: &[&str], help: &str| json!({"type": "select_string_multi", "label": "Models", "required": true, "choices": choices, "help_text": help});
    let view = view(&["heron-70b", "kestrel-8b"]);
    let ours = option(&["heron-70b", "kestrel-8b", "all"], help);
    let theirs = json!({"type": "string", "label": "Cost centre"});
    let whole = json!({"order": ["cost_centre", "models"], "options": {"cost_centre": theirs, "models": ours}, "more": 1});
    assert_eq!(form_of(&view, json!({"order": ["cost_centre"], "options": {"cost_centre": theirs}, "more": 1})), Some(whole.clone()));
    assert_eq!(form_of(&view, whole.clone()), None);
    assert_eq!(form_of(&view, Value::Null), Some(json!({"order": ["models"], "options": {"models": ours}})));
    // An option that is in no order is shown to nobody.
    let mut hidden = whole.clone();
    hidden["order"] = json!(["cost_centre"]);
    assert_eq!(form_of(&view, hidden), Some(whole.clone()));
    // What there is stays in its order; what is sold no more goes, what is new comes last, and no name is there twice.
    let mut other = whole.clone();
    other["options"]["models"]["choices"] = json!(["gone-1b", "kestrel-8b", "kestrel-8b"]);
    let changed = form_of(&view, other).unwrap();
    assert_eq!(changed["options"]["models"]["choices"], json!(["kestrel-8b", "heron-70b", "all"]));
    assert_eq!(changed["order"], json!(["cost_centre", "models"]));
    // The prices of what is missed are not known: what was said of them stays until it is back or gone.
    let mut missed = self::view(&["kestrel-8b"]);
    missed.missing.insert("heron-70b".into(), at(NOW));
    missed.sold.insert("heron-70b".into());
    assert_eq!(form_of(&missed, whole.clone()), None);
    missed.missing.clear();
    missed.sold.remove("heron-70b");
    let less = form_of(&missed, whole).unwrap();
    assert!(!less["options"]["models"]["help_text"].as_str().unwrap().contains("heron-70b"));
    // Nothing is sold: `all` would be an order for nothing.
    let closed = "inference_models:\n  - {name: k, served_name: kestrel-8b, orderable: false}\n";
    let closed = View::of(crate::catalogue::parse(closed, "catalogue.yml").unwrap());
    assert_eq!(form_of(&closed, Value::Null).unwrap()["options"]["models"]["choices"], json!([]));
    let news = View::of(crate::catalogue::parse(CATALOGUE, "catalogue.yml").unwrap());
    let help = form_of(&news, Value::Null).unwrap()["options"]["models"]["help_text"].as_str().unwrap().to_owned();
    assert!(help.ends_with("new-1b not priced yet; free-1b input 0, output 0."), "{help}");
}

#[test]
fn an_operator_reads_what_would_be_done_to_an_offering() {
    let settings = settings("");
    let mut offering = sold(&settings);
    let says = |offering: &Offering, view: &View, now: &str| {
        let plan = plan_offering(&shop(&settings, view, now), offering).unwrap();
        let said: Vec<String> = plan.actions.iter().map(ToString::to_string).chain(plan.findings.iter().map(ToString::to_string)).collect();
        (said, plan.actions.iter().map(OfferingAction::name).collect::<Vec<_>>())
    };
    let gone = without_heron();
    let (said, names) = says(&offering, &gone, NOW);
    let expected = [
        "note which components are ours (7); gone: heron-70b",
        "set the choices of `models` on resources: kestrel-8b, all",
        "set the choices of `models` on the order form: kestrel-8b, all",
    ];
    assert_eq!(
        (said.as_slice(), names.as_slice()),
        (expected.map(str::to_owned).as_slice(), ["note-on-offering", "set-resource-options", "set-options"].as_slice())
    );
    keep(&mut offering, &shop(&settings, &gone, NOW));
    note(&mut offering, "heron-70b:input", |note| {
        note.refused = Some(at("2026-12-04T00:00:00Z"));
        note.reason = "it has usage".into();
    });
    let (said, names) = says(&offering, &gone, "2026-12-04T00:00:00Z");
    let expected = [
        "change component heron-70b:input: name → \"[retired] heron-70b input\"",
        "set prices of plan Standard: heron-70b:input 0.0002 → 0",
        "set prices of plan Research: heron-70b:input 0.0002 → 0",
        "remove component heron-70b:output and its usage history in Waldur",
        "component heron-70b:input is retired, and its removal is tried again daily: it has usage",
    ];
    assert_eq!(said, expected.map(str::to_owned));
    assert_eq!(names, ["update-component", "set-prices", "set-prices", "remove-component"]);
    let new = view(&["kestrel-8b", "heron-70b", "new-1b"]);
    let (said, names) = says(&offering, &new, NOW);
    assert!(said.contains(&"create component new-1b:input (new-1b input: 0.0002 EUR per 1k tokens)".to_owned()), "{said:?}");
    assert!(said.contains(&"note which components are ours (9)".to_owned()) && names.contains(&"create-component"), "{said:?}");
    let foreign = Finding::NotOurs { kind: "spend".into(), billing: BillingType::Fixed };
    assert!(foreign.to_string().starts_with("component spend is charged as fixed, so somebody else made it; it is left alone."));
    assert!(Finding::NoSuchPlan("Nowhere".into()).to_string().starts_with("there is no plan \"Nowhere\""));
    use Stage::{Current, Foreign, Gone, Held, Retired, Unused};
    let stages = [Current, Held, Gone, Retired, Unused, Foreign].map(Stage::as_str);
    assert_eq!(stages, ["sold", "held", "gone", "retired", "unused", "not ours"]);
}
