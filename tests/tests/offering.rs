//! The catalogue drives the offering: choices, components and prices follow one file, and nothing else is touched.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_agent::plan::{Finding, OfferingAction};
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::{PROFILES, World};
use rust_decimal::Decimal;
use serde_json::{Value, json};

const CATALOGUE: &str = "inference:
  budget: {max_budget_eur: 35}
  models:
    - {name: kestrel-8b, served_name: kestrel-8b, orderable: true, litellm_model_info: {input_cost_per_token: 2.1e-07, output_cost_per_token: 8.5e-07}}
    - {name: heron-70b, served_name: heron-70b, orderable: true, litellm_model_info: {input_cost_per_token: 1.0e-06, output_cost_per_token: 2.0e-06}}
    - {name: qwen2-5-0-5b, served_name: qwen2.5-0.5b, orderable: true}
    - {name: embed, served_name: qwen3-embedding-0-6b, orderable: false, runtime: tei, litellm_model_info: {input_cost_per_token: 2.0e-08}}
";

/// A world whose catalogue has prices, and a running agent.
async fn world(profile: Profile, more: &str) -> (World, Agent) {
    let world = World::new(profile).await;
    world.write("catalogue.yml", CATALOGUE);
    let agent = agent(&world, more).await;
    (world, agent)
}

/// An agent whose offering has further settings.
async fn agent(world: &World, more: &str) -> Agent {
    let text = world.config_text("").replace("    limits:", &format!("{more}    limits:"));
    Agent::new(world.parse(&text), world.clock.clone()).await.unwrap()
}

fn dec(text: &str) -> Decimal {
    text.parse().unwrap()
}

/// The price now and from the 1st.
fn price(world: &World, kind: &str) -> (String, Option<String>) {
    let prices = world.waldur.prices(world.offering);
    let view = prices.get(kind).unwrap_or_else(|| panic!("{kind} has no price; there are {:?}", prices.keys()));
    (view.price.normalize().to_string(), view.future.map(|price| price.normalize().to_string()))
}

async fn settled(world: &World, agent: &Agent) {
    agent.offering_beat().await;
    let trouble: Vec<_> = agent.conditions.all().into_iter().filter(|(name, ..)| *name == "offering-not-kept").collect();
    assert!(trouble.is_empty(), "{trouble:?}");
    world.faults.reset_calls();
    agent.offering_beat().await;
    assert_eq!(world.writes(None), Vec::<String>::new(), "a second pass has nothing to do");
    assert!(world.faults.count() <= 2, "one look at the offering and one at what the gateway serves: {:?}", world.faults.calls());
}

#[tokio::test]
async fn a_fresh_offering_gets_choices_components_and_prices_and_a_second_pass_writes_nothing() {
    for profile in PROFILES {
        let (world, agent) = world(profile, "").await;
        settled(&world, &agent).await;
        assert_eq!(world.waldur.models(world.offering), ["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "all"]);
        let components = world.waldur.components(world.offering);
        assert_eq!(components["kestrel-8b:input"], ("kestrel-8b input: 0.00021 EUR per 1k tokens".into(), "usage".into()));
        assert_eq!(components["kestrel-8b:output"].0, "kestrel-8b output: 0.00085 EUR per 1k tokens");
        assert_eq!(components["qwen2_5-0_5b:input"].0, "qwen2.5-0.5b input: not priced yet");
        assert_eq!(components["qwen3-embedding-0-6b:input"].0, "qwen3-embedding-0-6b input: 0.00002 EUR per 1k tokens");
        assert!(!components.contains_key("qwen3-embedding-0-6b:output"));
        assert_eq!(price(&world, "kestrel-8b:input"), ("0.00021".into(), None));
        assert_eq!(price(&world, "qwen2_5-0_5b:input"), ("0".into(), None));
        let (options, resource_options) = world.waldur.forms(world.offering);
        for form in [&options, &resource_options] {
            let option = &form["options"]["models"];
            assert_eq!(
                (&option["type"], &option["label"], &option["required"]),
                (&json!("select_string_multi"), &json!("Models"), &json!(true))
            );
            assert_eq!(form["order"], json!(["models"]));
            let help = option["help_text"].as_str().unwrap();
            assert!(
                help.contains("kestrel-8b input 0.00021, output 0.00085")
                    && help.contains("qwen2.5-0.5b not priced yet")
                    && help.contains("EUR per 1k tokens"),
                "{help}"
            );
        }
        let notes = &world.waldur.offering_metadata(world.offering)["llm_access"];
        assert_eq!((&notes["owner"], &notes["components"]["kestrel-8b:input"]["model"]), (&json!("icarus"), &json!("kestrel-8b")));
        assert!(notes["components"].get("input_tokens").is_none(), "an older system's component is not ours: {notes}");
        world.check();
    }
}

#[tokio::test]
async fn what_others_made_is_kept() {
    for profile in PROFILES {
        let (world, _) = world(profile, "").await;
        let foreign =
            json!({"order": ["note", "models"], "options": {"note": {"type": "string", "label": "Note"}, "models": {"type": "string"}}});
        world.waldur.set_forms(world.offering, foreign.clone(), foreign);
        world.waldur.add_component(world.offering, "base", "fixed");
        world.waldur.set_price(world.offering, "base", dec("12.5"));
        world.waldur.set_price(world.offering, "spend", dec("0.9"));
        let other = world.waldur.add_plan(world.offering, "Large");
        let agent = agent(&world, "    plans: [Standard]\n").await;
        world.order("aurora", &[]);
        settled(&world, &agent).await;
        let (options, _) = world.waldur.forms(world.offering);
        assert_eq!(options["options"]["note"], json!({"type": "string", "label": "Note"}));
        assert_eq!(options["order"], json!(["note", "models"]));
        for (kind, kept) in [("base", "12.5"), ("spend", "0.9")] {
            let (now, then) = price(&world, kind);
            assert_eq!((now.as_str(), then.as_deref().unwrap_or(kept)), (kept, kept), "{kind}");
        }
        let untouched = agent.waldur.plan(other).await.unwrap();
        assert!(
            untouched.prices.values().chain(untouched.future_prices.values()).all(Decimal::is_zero),
            "the plan is not among those that are kept: {untouched:?}"
        );
    }
}

#[tokio::test]
async fn a_new_price_is_set_once_and_waits_for_the_first_where_the_plan_has_resources() {
    for profile in PROFILES {
        let (world, agent) = world(profile, "").await;
        settled(&world, &agent).await;
        world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        world.write("catalogue.yml", &CATALOGUE.replace("2.1e-07", "3.1e-07"));
        settled(&world, &agent).await;
        assert_eq!(price(&world, "kestrel-8b:input"), ("0.00021".into(), Some("0.00031".into())), "{profile:?}");
        let name = &world.waldur.components(world.offering)["kestrel-8b:input"].0;
        assert_eq!(name, "kestrel-8b input: 0.00031 EUR per 1k tokens from 2026-12-01");
        let kept = agent.keep_offering(&agent.config.offerings[0]).await.unwrap();
        assert!(
            kept.findings.contains(&Finding::Pending {
                kind: "kestrel-8b:input".into(),
                plan: "Standard".into(),
                now: dec("0.00021"),
                then: dec("0.00031")
            }),
            "{:?}",
            kept.findings
        );
        for _ in 0..3 {
            world.advance(Duration::from_secs(86_400));
            world.faults.reset_calls();
            agent.offering_beat().await;
            assert_eq!(world.writes(None), Vec::<String>::new(), "nothing is sent twice");
        }
        world.set_time("2026-12-01T00:10:00Z");
        settled(&world, &agent).await;
        assert_eq!(price(&world, "kestrel-8b:input").0, "0.00031");
        assert_eq!(world.waldur.components(world.offering)["kestrel-8b:input"].0, "kestrel-8b input: 0.00031 EUR per 1k tokens");
    }
}

#[tokio::test]
async fn a_price_that_is_taken_away_really_becomes_zero() {
    for profile in PROFILES {
        let (world, agent) = world(profile, "").await;
        settled(&world, &agent).await;
        world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        world.waldur.set_price(world.offering, "spend", dec("0.9"));
        // Not priced any more: a Waldur of 2024 ignores the zero until a future price is set.
        let unpriced = CATALOGUE.replace(", litellm_model_info: {input_cost_per_token: 2.1e-07, output_cost_per_token: 8.5e-07}", "");
        world.write("catalogue.yml", &unpriced);
        settled(&world, &agent).await;
        // A file that was cut inside its last entry looks the same: nothing becomes free at once.
        assert_eq!(price(&world, "kestrel-8b:input").0, "0.00021");
        assert!(price(&world, "kestrel-8b:input").1.is_none_or(|price| price == "0.00021"), "{profile:?}");
        assert!(agent.conditions.holds("catalogue-entry-doubted"));
        for _ in 0..3 {
            world.advance(Duration::from_secs(1300));
            settled(&world, &agent).await;
        }
        assert!(!agent.conditions.holds("catalogue-entry-doubted"));
        assert_eq!(price(&world, "kestrel-8b:input"), ("0.00021".into(), Some("0".into())), "{profile:?}");
        assert_eq!(price(&world, "spend").0, "0.9");
        assert!(price(&world, "spend").1.is_none_or(|price| price == "0.9"), "a price of others is never zeroed");
        world.set_time("2026-12-01T00:10:00Z");
        settled(&world, &agent).await;
        assert_eq!(price(&world, "kestrel-8b:input").0, "0");
        assert_eq!(price(&world, "spend").0, "0.9");
    }
}

#[tokio::test]
async fn exactly_one_family_charges() {
    for profile in PROFILES {
        let (world, _) = world(profile, "").await;
        let per_model = agent(&world, "    components: [per_model, aggregate]\n").await;
        settled(&world, &per_model).await;
        assert_eq!((price(&world, "kestrel-8b:input").0, price(&world, "spend").0), ("0.00021".into(), "0".into()));
        let spend = agent(&world, "    billing: spend\n").await;
        settled(&world, &spend).await;
        assert_eq!(
            (price(&world, "kestrel-8b:input").0, price(&world, "spend").0, price(&world, "input_tokens").0),
            ("0".into(), "1".into(), "0".into())
        );
        // A family that is not configured any more stays, costs nothing and is told from the others.
        let back = agent(&world, "").await;
        settled(&world, &back).await;
        assert_eq!((price(&world, "kestrel-8b:input").0, price(&world, "spend").0), ("0.00021".into(), "0".into()));
    }
}

#[tokio::test]
async fn limits_get_their_defaults_and_bounds_and_cost_nothing() {
    let (world, agent) = world(Profile::Late2026, "").await;
    settled(&world, &agent).await;
    let offering = agent.waldur.offering(world.offering).await.unwrap();
    let of = |kind: &str| offering.components.iter().find(|component| component.kind == kind).unwrap().clone();
    assert_eq!(
        (of("max_budget").default_limit, of("max_budget").max_value),
        (Some(dec("35")), Some(dec("1000"))),
        "the catalogue's budget is the default"
    );
    assert_eq!((of("tpm_limit").default_limit, of("rpm_limit").default_limit), (Some(dec("100000")), Some(dec("600"))));
    assert_eq!(of("max_budget").measured_unit, "EUR");
    assert_eq!(price(&world, "max_budget").0, "0");
}

#[tokio::test]
async fn a_limit_that_the_configuration_has_no_more_bounds_nobody() {
    for profile in PROFILES {
        let (world, agent) = world(profile, "").await;
        settled(&world, &agent).await;
        world.write("catalogue.yml", &CATALOGUE.replace("  budget: {max_budget_eur: 35}\n", ""));
        let limits = "limits: {max_budget: {default: 20, max: 1000}, tpm_limit: {default: 100000}, rpm_limit: {default: 600}}";
        let text = world.config_text("").replace(limits, "limits: {allow_unlimited: true}");
        let free = Agent::new(world.parse(&text), world.clock.clone()).await.unwrap();
        settled(&world, &free).await;
        let offering = free.waldur.offering(world.offering).await.unwrap();
        let of = |kind: &str| offering.components.iter().find(|component| component.kind == kind).unwrap();
        assert_eq!(of("max_budget").max_value, None);
        assert_eq!(of("tpm_limit").default_limit, None);
        let (order, _) = world.waldur.order(world.offering, &world.project, "vast", &["kestrel-8b"], &[("max_budget", "5000")]);
        world.beat(&free).await;
        assert_eq!(world.waldur.order_state(order), "done");
        world.check();
    }
}

#[tokio::test]
async fn a_budget_of_the_catalogue_above_the_most_of_the_offering_refuses_nobody() {
    for profile in PROFILES {
        let (world, agent) = world(profile, "").await;
        world.write("catalogue.yml", &CATALOGUE.replace("max_budget_eur: 35", "max_budget_eur: 5000"));
        settled(&world, &agent).await;
        let offering = agent.waldur.offering(world.offering).await.unwrap();
        let budget = offering.components.iter().find(|component| component.kind == "max_budget").unwrap();
        assert_eq!((budget.default_limit, budget.max_value), (Some(dec("1000")), Some(dec("1000"))));
        let (order, resource) = world.waldur.order(world.offering, &world.project, "plain", &["kestrel-8b"], &[]);
        world.beat(&agent).await;
        assert_eq!(world.waldur.order_state(order), "done");
        assert_eq!(world.gateway.team(&resource.simple().to_string()).unwrap().max_budget, Some(dec("1000")));
        world.check();
    }
}

#[tokio::test]
async fn hand_made_differences_are_put_right() {
    let (world, agent) = world(Profile::Late2026, "").await;
    settled(&world, &agent).await;
    let before = (world.waldur.forms(world.offering), world.waldur.components(world.offering), world.waldur.prices(world.offering));
    world.waldur.name_component(world.offering, "kestrel-8b:input", "free tokens!");
    world.waldur.set_price(world.offering, "kestrel-8b:output", dec("0"));
    world.waldur.set_models(world.offering, &["kestrel-8b"]);
    world.waldur.drop_component(world.offering, "heron-70b:output");
    settled(&world, &agent).await;
    assert_eq!(world.waldur.components(world.offering), before.1);
    let names = |forms: &(Value, Value)| forms.0["options"]["models"]["choices"].as_array().unwrap().len();
    assert_eq!(names(&world.waldur.forms(world.offering)), names(&before.0));
    assert_eq!(price(&world, "kestrel-8b:output").0, "0.00085");
    assert_eq!(price(&world, "heron-70b:output").0, "0.002");
}

#[tokio::test]
async fn a_component_that_others_charge_differently_is_left_alone_and_reported() {
    let (world, agent) = world(Profile::Y2024, "").await;
    world.waldur.add_component(world.offering, "kestrel-8b:input", "fixed");
    world.waldur.set_price(world.offering, "kestrel-8b:input", dec("7"));
    settled(&world, &agent).await;
    assert_eq!(world.waldur.components(world.offering)["kestrel-8b:input"], ("kestrel-8b:input".into(), "fixed".into()));
    assert_eq!(price(&world, "kestrel-8b:input").0, "7");
    assert!(agent.conditions.holds("component-not-ours"));
    world.waldur.drop_component(world.offering, "kestrel-8b:input");
    settled(&world, &agent).await;
    assert!(!agent.conditions.holds("component-not-ours"));
    assert_eq!(price(&world, "kestrel-8b:input").0, "0.00021");
}

#[tokio::test]
async fn a_component_of_ours_that_somebody_charges_differently_keeps_its_price() {
    for profile in PROFILES {
        let (world, agent) = world(profile, "").await;
        settled(&world, &agent).await;
        let offering = agent.waldur.offering(world.offering).await.unwrap();
        let uuid =
            offering.components.iter().find(|component| component.kind == "kestrel-8b:input").and_then(|component| component.uuid).unwrap();
        let change = waldur_client::ComponentChange { billing_type: Some(waldur_client::BillingType::Fixed), ..Default::default() };
        agent.waldur.update_component(world.offering, uuid, &change).await.unwrap();
        world.waldur.set_price(world.offering, "kestrel-8b:input", dec("7"));
        settled(&world, &agent).await;
        assert!(agent.conditions.holds("component-not-ours"));
        assert_eq!(price(&world, "kestrel-8b:input").0, "7", "{profile:?}: it is said to be left alone");
    }
}

#[tokio::test]
async fn an_offering_of_another_owner_and_a_plan_that_is_not_there_are_reported() {
    let (world, agent) = world(Profile::Late2026, "    plans: [standard]\n").await;
    settled(&world, &agent).await;
    assert!(agent.conditions.holds("plan-not-found"), "the plan is called Standard");
    let mut other = World::new(Profile::Late2026).await;
    other.owner = "daedalus".into();
    let daedalus = other.agent().await;
    daedalus.offering_beat().await;
    other.owner = "icarus".into();
    let icarus = other.agent().await;
    other.faults.reset_calls();
    icarus.offering_beat().await;
    assert!(icarus.conditions.holds("offering-of-another-owner"));
    assert_eq!(other.writes(None), Vec::<String>::new());
}

#[tokio::test]
async fn a_server_that_does_not_keep_what_it_takes_is_named_and_not_written_to_for_ever() {
    let (world, agent) = world(Profile::Late2026, "").await;
    settled(&world, &agent).await;
    // It answers 200 to the new price and stores nothing.
    world.faults.add(Rule::new(Fault::status(200, "")).peer(Peer::Waldur).path("/update_prices/"));
    world.write("catalogue.yml", &CATALOGUE.replace("2.1e-07", "3.1e-07"));
    world.faults.reset_calls();
    agent.offering_beat().await;
    let (_, _, condition) = agent.conditions.all().into_iter().find(|(name, ..)| *name == "offering-not-kept").unwrap();
    assert!(condition.message.contains("kestrel-8b:input 0.00021 → 0.00031"), "{}", condition.message);
    assert!(world.writes(None).len() < 6, "{:?}", world.writes(None));
}

#[tokio::test]
async fn the_plan_is_shown_before_anything_is_written() {
    let (world, agent) = world(Profile::Late2026, "").await;
    let offering = agent.waldur.offering(world.offering).await.unwrap();
    world.faults.reset_calls();
    let plan = agent.offering_plan(&agent.config.offerings[0], &offering).unwrap();
    assert_eq!(world.writes(None), Vec::<String>::new());
    let shown: Vec<String> = plan.actions.iter().map(ToString::to_string).collect();
    for expected in ["create component kestrel-8b:input", "kestrel-8b:input 0 → 0.00021", "choices of `models`"] {
        assert!(shown.iter().any(|line| line.contains(expected)), "{expected} in {shown:#?}");
    }
    assert!(plan.actions.iter().any(|action| matches!(action, OfferingAction::Note(_))));
}
