//! What leaves the catalogue goes away everywhere, or is visibly retired; and nothing goes that was only lost by accident.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_agent::cli::components::{Remove, remove};
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::{PROFILES, World};
use rust_decimal::Decimal;
use serde_json::{Value, json};
use uuid::Uuid;

const MINUTE: Duration = Duration::from_secs(60);

/// A catalogue of `models` with prices, and the embedder.
fn catalogue(models: &[&str]) -> String {
    let mut text = String::from("inference_models:\n");
    for name in models {
        text.push_str(&format!(
            "  - {{name: m, served_name: {name}, litellm_model_info: {{input_cost_per_token: 2.0e-07, output_cost_per_token: 4.0e-07}}}}\n"
        ));
    }
    text.push_str("  - {name: e, served_name: qwen3-embedding-0-6b, runtime: tei, litellm_model_info: {input_cost_per_token: 2.0e-08}}\n");
    text
}

const EIGHT: [&str; 8] = ["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "m4", "m5", "m6", "m7", "m8"];
const WITHOUT_HERON: [&str; 7] = ["kestrel-8b", "qwen2.5-0.5b", "m4", "m5", "m6", "m7", "m8"];

/// A world that sells eight models and the embedder.
async fn world(profile: Profile) -> (World, Agent) {
    let world = World::new(profile).await;
    for name in &EIGHT[3..] {
        world.gateway.add_model(name, Some("0.0000002"), Some("0.0000004"));
    }
    world.write("catalogue.yml", &catalogue(&EIGHT));
    let agent = world.agent().await;
    agent.offering_beat().await;
    (world, agent)
}

/// Both slow loops, once.
async fn pass(world: &World, agent: &Agent) {
    agent.offering_beat().await;
    world.slow_beat(agent).await;
}

/// Passes, with time going by, until a model that left the file counts as gone.
async fn past_the_hold(world: &World, agent: &Agent) {
    for _ in 0..4 {
        pass(world, agent).await;
        world.advance(25 * MINUTE);
    }
    pass(world, agent).await;
}

fn team_models(world: &World, resource: Uuid) -> Vec<String> {
    let mut models = world.gateway.team(&resource.simple().to_string()).unwrap().models;
    models.sort();
    models
}

fn note(world: &World, kind: &str) -> Value {
    world.waldur.offering_metadata(world.offering)["llm_access"]["components"][kind].clone()
}

fn name_of(world: &World, kind: &str) -> Option<String> {
    world.waldur.components(world.offering).get(kind).map(|(name, _)| name.clone())
}

/// Everything an accident could change, line by line.
fn everything(world: &World, resources: &[Uuid]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for resource in resources {
        lines.push(format!("team {:?}", team_models(world, *resource)));
        lines.extend(
            world
                .secrets(*resource)
                .into_iter()
                .flat_map(|(slot, data)| data.into_iter().map(move |(name, value)| format!("{slot} {name}={value}"))),
        );
    }
    lines.extend(
        world.waldur.prices(world.offering).into_iter().map(|(kind, price)| format!("price {kind} {} {:?}", price.price, price.future)),
    );
    lines.extend(world.waldur.components(world.offering).into_iter().map(|(kind, component)| format!("component {kind} {component:?}")));
    let (options, resource_options) = world.waldur.forms(world.offering);
    lines.extend([options.to_string(), resource_options.to_string()]);
    lines
}

#[track_caller]
fn unchanged(before: &[String], now: &[String], when: &str) {
    let lost: Vec<&String> = before.iter().filter(|line| !now.contains(line)).collect();
    let new: Vec<&String> = now.iter().filter(|line| !before.contains(line)).collect();
    assert!(lost.is_empty() && new.is_empty(), "{when}: these went {lost:#?} and these came {new:#?}");
}

#[tokio::test]
async fn a_model_that_left_goes_from_choices_teams_and_connections_after_the_hold() {
    for profile in PROFILES {
        let (world, agent) = world(profile).await;
        let both = world.sold(&agent, "both", &["kestrel-8b", "heron-70b"]).await;
        let alone = world.sold(&agent, "alone", &["heron-70b"]).await;
        let all = world.sold(&agent, "all", &["all"]).await;
        pass(&world, &agent).await;
        let before = everything(&world, &[both, alone, all]);
        world.write("catalogue.yml", &catalogue(&WITHOUT_HERON));
        world.faults.reset_calls();
        for _ in 0..3 {
            pass(&world, &agent).await;
            world.advance(19 * MINUTE);
        }
        unchanged(&before, &everything(&world, &[both, alone, all]), "less than an hour changes nothing");
        assert_eq!(world.writes(None), Vec::<String>::new());
        let (order, _) = world.order("late", &["heron-70b"]);
        world.beat(&agent).await;
        assert_eq!(world.waldur.order_state(order), "done", "what is still a choice can still be ordered");

        world.advance(10 * MINUTE);
        world.faults.reset_calls();
        pass(&world, &agent).await;
        assert!(!world.waldur.models(world.offering).contains(&"heron-70b".to_owned()));
        assert_eq!(team_models(&world, both), ["kestrel-8b", "qwen3-embedding-0-6b"]);
        assert_eq!(team_models(&world, alone), ["qwen3-embedding-0-6b"]);
        assert!(!team_models(&world, all).contains(&"heron-70b".to_owned()));
        assert_eq!(world.secrets(both)["project"]["OPENAI_MODELS"], "kestrel-8b,qwen3-embedding-0-6b");
        assert!(!world.secrets(both)["chat"].values().any(|value| value.contains("heron-70b")));
        let updates = world.writes(Some(Peer::LiteLlm)).len();
        assert_eq!(updates, 4, "only the teams that had the model are written to: {:?}", world.writes(Some(Peer::LiteLlm)));
        world.check();

        // It comes back: everybody who ordered it has it again.
        world.write("catalogue.yml", &catalogue(&EIGHT));
        pass(&world, &agent).await;
        assert_eq!(team_models(&world, both), ["heron-70b", "kestrel-8b", "qwen3-embedding-0-6b"]);
        assert_eq!(note(&world, "heron-70b:input"), json!({"model": "heron-70b"}));
        world.check();
    }
}

#[tokio::test]
async fn an_added_model_reaches_only_those_who_ordered_it_or_all() {
    let (world, agent) = world(Profile::Late2026).await;
    let one = world.sold(&agent, "one", &["kestrel-8b"]).await;
    let all = world.sold(&agent, "all", &["all"]).await;
    world.gateway.add_model("new-1b", None, None);
    world.write("catalogue.yml", &catalogue(&[&EIGHT[..], &["new-1b"]].concat()));
    pass(&world, &agent).await;
    assert_eq!(team_models(&world, one), ["kestrel-8b", "qwen3-embedding-0-6b"]);
    assert!(team_models(&world, all).contains(&"new-1b".to_owned()));
    assert!(world.waldur.models(world.offering).contains(&"new-1b".to_owned()));
    assert!(name_of(&world, "new-1b:output").is_some());
    world.check();
}

#[tokio::test]
async fn a_resource_that_is_left_with_no_model_gets_none_and_is_reported() {
    let world = World::new(Profile::Late2026).await;
    world.write("catalogue.yml", &catalogue(&EIGHT));
    let text = world.config_text("").replace("    always_include: [qwen3-embedding-0-6b]\n", "");
    let agent = Agent::new(world.parse(&text), world.clock.clone()).await.unwrap();
    agent.offering_beat().await;
    let alone = world.sold(&agent, "alone", &["heron-70b"]).await;
    world.write("catalogue.yml", &catalogue(&WITHOUT_HERON));
    past_the_hold(&world, &agent).await;
    assert_eq!(team_models(&world, alone), ["no-default-models"]);
    assert_eq!(world.gateway.chat(&world.key(alone, "project"), "kestrel-8b", "P=1 C=1").unwrap_err().0, 403);
    pass(&world, &agent).await;
    assert!(
        agent.conditions.all().iter().any(|(name, subject, _)| *name == "no-models-left" && *subject == alone.simple().to_string()),
        "{:?}",
        agent.conditions.all()
    );
    world.write("catalogue.yml", &catalogue(&EIGHT));
    pass(&world, &agent).await;
    pass(&world, &agent).await;
    assert!(!agent.conditions.holds("no-models-left"));
}

#[tokio::test]
async fn no_damaged_catalogue_prunes_anything_before_or_after_a_restart() {
    let whole = catalogue(&EIGHT);
    let cut: String = whole.lines().take(3).map(|line| format!("{line}\n")).collect();
    let damaged: [(&str, &str); 7] = [
        ("cut at a line end", &cut),
        ("cut in a line", &whole[..whole.len() / 2]),
        ("empty", ""),
        ("only dashes", "---\n"),
        ("only a comment", "# moved\n"),
        ("one disabled model", "inference_models:\n  - {name: m, served_name: x, enabled: false}\n"),
        ("somebody else's file", "services: {web: {image: nginx}}\n"),
    ];
    for (what, text) in damaged {
        let (world, mut agent) = world(Profile::Late2026).await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b", "heron-70b", "m8"]).await;
        pass(&world, &agent).await;
        let before = everything(&world, &[resource]);
        world.write("catalogue.yml", text);
        world.faults.reset_calls();
        for restart in [false, true] {
            if restart {
                agent = world.agent().await;
            }
            for _ in 0..6 {
                pass(&world, &agent).await;
                world.advance(40 * MINUTE);
            }
            unchanged(&before, &everything(&world, &[resource]), what);
            assert_eq!(world.writes(None), Vec::<String>::new(), "{what}");
            let raised = ["catalogue-shrink-held", "catalogue-unreadable"].iter().filter(|name| agent.conditions.holds(name)).count();
            assert_eq!(raised, 1, "{what}: {:?}", agent.conditions.all());
        }
        // Whole again: the conditions end.
        world.write("catalogue.yml", &whole);
        pass(&world, &agent).await;
        assert!(!agent.conditions.holds("catalogue-shrink-held") && !agent.conditions.holds("catalogue-unreadable"));
        world.check();
    }
}

#[tokio::test]
async fn a_missing_file_and_failing_peers_prune_nothing() {
    let (world, agent) = world(Profile::Late2026).await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b", "heron-70b"]).await;
    pass(&world, &agent).await;
    let before = everything(&world, &[resource]);
    std::fs::remove_file(world.path("catalogue.yml")).unwrap();
    past_the_hold(&world, &agent).await;
    unchanged(&before, &everything(&world, &[resource]), "after failing reads");
    assert!(agent.conditions.holds("catalogue-unreadable"));

    // An offering read that breaks off in the middle, and a gateway without its database, say nothing either.
    world.write("catalogue.yml", &catalogue(&EIGHT));
    pass(&world, &agent).await;
    world.faults.add(Rule::new(Fault::Truncate).peer(Peer::Waldur).path("/marketplace-provider-offerings/"));
    world.gateway.set_database(false);
    past_the_hold(&world, &agent).await;
    assert!(agent.conditions.holds("offering-not-kept"));
    world.faults.clear();
    world.gateway.set_database(true);
    unchanged(&before, &everything(&world, &[resource]), "after failing reads");
    pass(&world, &agent).await;
    assert!(!agent.conditions.holds("offering-not-kept"));
}

#[tokio::test]
async fn a_start_with_a_catalogue_that_lost_too_much_changes_no_price_and_gives_no_team_a_model() {
    let (world, agent) = world(Profile::Late2026).await;
    // Not for everybody.
    let whole = catalogue(&EIGHT).replace("served_name: m4,", "served_name: m4, orderable: false,");
    world.write("catalogue.yml", &whole);
    past_the_hold(&world, &agent).await;
    let resource = world.sold(&agent, "aurora", &["all"]).await;
    pass(&world, &agent).await;
    assert!(!team_models(&world, resource).contains(&"m4".to_owned()));
    let before = everything(&world, &[resource]);
    // The file of another environment: fewer models, one of them for sale, at other prices.
    world.write("catalogue.yml", &catalogue(&["kestrel-8b", "m4"]).replace("2.0e-07", "9.0e-07"));
    let agent = world.agent().await;
    past_the_hold(&world, &agent).await;
    assert!(agent.conditions.holds("catalogue-shrink-held"), "{:?}", agent.conditions.all());
    unchanged(&before, &everything(&world, &[resource]), "after a restart");
    world.write("catalogue.yml", &whole);
    pass(&world, &agent).await;
    assert!(!agent.conditions.holds("catalogue-shrink-held"));
    unchanged(&before, &everything(&world, &[resource]), "whole again");
}

#[tokio::test]
async fn while_a_file_is_doubted_nobody_takes_back_what_another_agent_told_of_a_later_one() {
    let whole = catalogue(&EIGHT);
    // The price of every model, and a model more.
    let later = whole.replace("2.0e-07", "9.0e-07");
    let unpriced = later.lines().map(|line| if line.contains("served_name: m8") { "  - {name: m8, served_name: m8}" } else { line });
    let doubtful = [
        ("lost too much", catalogue(&EIGHT[..3])),
        ("lost one", catalogue(&EIGHT[..7]).replace("2.0e-07", "9.0e-07")),
        ("lost a price", unpriced.collect::<Vec<_>>().join("\n")),
    ];
    for (name, file) in doubtful {
        let (world, agent) = world(Profile::Late2026).await;
        world.write("catalogue.yml", &whole);
        past_the_hold(&world, &agent).await;
        let resource = world.sold(&agent, "aurora", &["all"]).await;
        pass(&world, &agent).await;
        // Another one acts for a while, and this one comes back.
        world.write("catalogue.yml", &later);
        let other = world.agent().await;
        past_the_hold(&world, &other).await;
        let before = everything(&world, &[resource]);
        world.write("catalogue.yml", &file);
        pass(&world, &other).await;
        pass(&world, &agent).await;
        unchanged(&before, &everything(&world, &[resource]), name);
    }
}

#[tokio::test]
async fn a_large_loss_goes_through_once_it_is_accepted() {
    let (world, agent) = world(Profile::Y2024).await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b", "m8"]).await;
    world.write("catalogue.yml", &catalogue(&EIGHT[..3]));
    past_the_hold(&world, &agent).await;
    assert!(agent.conditions.holds("catalogue-shrink-held"));
    assert!(team_models(&world, resource).contains(&"m8".to_owned()));

    // The operator's word is another process's, and the running agent finds it on the offering.
    let operator = world.agent().await;
    llm_access_agent::cli::catalogue::accept(&operator).await.unwrap();
    pass(&world, &agent).await;
    assert!(!agent.conditions.holds("catalogue-shrink-held"), "{:?}", agent.conditions.all());
    assert_eq!(team_models(&world, resource), ["kestrel-8b", "qwen3-embedding-0-6b"]);
    assert_eq!(world.waldur.models(world.offering), ["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "all"]);
    world.check();
}

#[tokio::test]
async fn a_component_is_kept_until_its_month_is_closed_and_then_removed_where_waldur_lets_it() {
    for profile in PROFILES {
        let (world, agent) = world(profile).await;
        world.write("catalogue.yml", &catalogue(&WITHOUT_HERON));
        past_the_hold(&world, &agent).await;
        assert!(name_of(&world, "heron-70b:input").is_some());
        assert_eq!(note(&world, "heron-70b:input")["model"], "heron-70b");
        world.set_time("2026-12-03T23:00:00Z");
        pass(&world, &agent).await;
        assert!(name_of(&world, "heron-70b:input").is_some(), "late rows are still waited for");
        world.set_time("2026-12-04T00:10:00Z");
        pass(&world, &agent).await;
        assert_eq!(name_of(&world, "heron-70b:input"), None, "{profile:?}");
        assert_eq!(name_of(&world, "heron-70b:output"), None);
        pass(&world, &agent).await;
        assert_eq!(note(&world, "heron-70b:input"), Value::Null, "nothing is left of it");
        world.faults.reset_calls();
        pass(&world, &agent).await;
        assert_eq!(world.writes(Some(Peer::Waldur)), Vec::<String>::new());
    }
}

#[tokio::test]
async fn where_waldur_refuses_the_component_is_retired_tried_again_and_un_retired_when_the_model_returns() {
    for profile in PROFILES {
        let (world, mut agent) = world(profile).await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        // Its first price is valid from the 1st.
        world.set_time("2026-12-02T09:00:00Z");
        world.waldur.set_price(world.offering, "heron-70b:input", "0.0002".parse().unwrap());
        pass(&world, &agent).await;
        world.write("catalogue.yml", &catalogue(&WITHOUT_HERON));
        past_the_hold(&world, &agent).await;
        world.set_time("2027-01-04T09:00:00Z");
        pass(&world, &agent).await;
        let kind = "heron-70b:input";
        assert_eq!(name_of(&world, kind).unwrap(), "[retired] heron-70b input", "{profile:?}: {:?}", agent.conditions.all());
        let price = world.waldur.prices(world.offering)[kind];
        assert_eq!(price.future, Some(Decimal::ZERO), "a zero that is really kept");
        assert!(note(&world, kind)["reason"].as_str().unwrap().contains("already used"));
        world.faults.reset_calls();
        pass(&world, &agent).await;
        assert_eq!(world.writes(None), Vec::<String>::new());

        // A restart changes nothing about it, and a day later the removal is tried again.
        agent = world.agent().await;
        pass(&world, &agent).await;
        assert_eq!(world.writes(None), Vec::<String>::new());
        world.advance(Duration::from_secs(25 * 3600));
        pass(&world, &agent).await;
        assert_eq!(
            world.writes(Some(Peer::Waldur)).iter().filter(|call| call.contains("remove_offering_component")).count(),
            2,
            "{:?}",
            world.writes(None)
        );
        world.set_time("2027-02-01T00:10:00Z");
        pass(&world, &agent).await;
        assert_eq!(world.waldur.prices(world.offering)[kind].price, Decimal::ZERO);

        world.write("catalogue.yml", &catalogue(&EIGHT));
        pass(&world, &agent).await;
        assert_eq!(name_of(&world, kind).unwrap(), "heron-70b input: 0.0002 EUR per 1k tokens from 2027-03-01");
        assert_eq!(note(&world, kind), json!({"model": "heron-70b"}));
        let price = world.waldur.prices(world.offering)[kind];
        assert_eq!(price.future.map(|price| price.normalize().to_string()).as_deref(), Some("0.0002"));
        assert!(world.waldur.models(world.offering).contains(&"heron-70b".to_owned()));
        assert_eq!(team_models(&world, resource), ["kestrel-8b", "qwen3-embedding-0-6b"]);
        world.check();
    }
}

#[tokio::test]
async fn a_stale_component_of_an_older_system_is_only_touched_by_hand() {
    for profile in PROFILES {
        let (world, agent) = world(profile).await;
        world.waldur.add_component(world.offering, "osprey-3b-input", "usage");
        world.waldur.set_price(world.offering, "osprey-3b-input", "0.3".parse().unwrap());
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        past_the_hold(&world, &agent).await;
        world.set_time("2027-01-04T09:00:00Z");
        pass(&world, &agent).await;
        assert_eq!(name_of(&world, "osprey-3b-input").unwrap(), "osprey-3b-input");
        assert_eq!(world.waldur.prices(world.offering)["osprey-3b-input"].price.to_string(), "0.3");

        // Looking first changes nothing.
        world.faults.reset_calls();
        let order = Remove { key: "osprey-3b-input".into(), ..Remove::default() };
        remove(&agent, &Remove { dry_run: true, ..order.clone() }).await.unwrap();
        assert_eq!(world.writes(None), Vec::<String>::new());
        remove(&agent, &order).await.unwrap();
        assert_eq!(name_of(&world, "osprey-3b-input").unwrap(), "[retired] osprey-3b-input");
        assert_eq!(world.waldur.prices(world.offering)["osprey-3b-input"].future, Some(Decimal::ZERO), "{profile:?}");
        // A second run has nothing to do, and the agent leaves it as it is.
        world.faults.reset_calls();
        remove(&agent, &order).await.unwrap();
        pass(&world, &agent).await;
        assert_eq!(world.writes(None), Vec::<String>::new());

        // With the last rows gone it goes as well; a living resource is never unlinked.
        let staff = world.write("staff-token", &world.waldur.staff_token());
        let unlink = Remove { unlink_with: Some(staff), ..order.clone() };
        assert!(remove(&agent, &unlink).await.unwrap_err().message.contains("in a state other than Terminated"));
        assert_eq!(world.waldur.resource(resource).state, "OK");
        world.waldur.terminate(resource);
        world.run_to_rest(&agent, 10).await;
        remove(&agent, &Remove { dry_run: true, ..unlink.clone() }).await.unwrap();
        assert_eq!(world.waldur.resources().len(), 1);
        remove(&agent, &unlink).await.unwrap();
        assert_eq!(name_of(&world, "osprey-3b-input"), None);
        assert!(world.waldur.resources().is_empty());
        remove(&agent, &order).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_sold_or_used_this_month_is_removed_by_hand_only_by_force() {
    let (world, agent) = world(Profile::Late2026).await;
    world.ends_in_trouble("a component of others is billed, which the checker's ledger does not know");
    let refused = |problem: llm_access_agent::cli::commands::Problem| {
        assert_eq!(problem.code, 2);
        problem.message
    };
    let order = Remove { key: "heron-70b".into(), ..Remove::default() };
    assert!(refused(remove(&agent, &order).await.unwrap_err()).contains("is sold"));
    world.write("catalogue.yml", &catalogue(&WITHOUT_HERON));
    pass(&world, &agent).await;
    assert!(refused(remove(&agent, &order).await.unwrap_err()).contains("does not count as gone"));
    remove(&agent, &Remove { force: true, ..order.clone() }).await.unwrap();
    assert_eq!(
        (name_of(&world, "heron-70b:input"), name_of(&world, "heron-70b:output")),
        (None, None),
        "a model's key means all its components"
    );

    world.waldur.add_component(world.offering, "old-tokens", "usage");
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    let usage = [waldur_client::Usage { kind: "old-tokens".into(), amount: "3.5".parse().unwrap() }];
    agent.waldur.set_usage(resource, &usage, None).await.unwrap();
    let order = Remove { key: "old-tokens".into(), ..Remove::default() };
    assert!(refused(remove(&agent, &order).await.unwrap_err()).contains("usage this month (3.5)"));
    assert_eq!(name_of(&world, "old-tokens").unwrap(), "old-tokens");
    // What is sold is not retired, since the agent would take it into use again.
    let sold = Remove { key: "kestrel-8b:input".into(), force: true, ..Remove::default() };
    let problem = remove(&agent, &sold).await.unwrap_err();
    assert!(problem.message.contains("already used"), "{}", problem.message);
    assert_eq!(name_of(&world, "kestrel-8b:input").unwrap(), "kestrel-8b input: 0.0002 EUR per 1k tokens");
}

#[tokio::test]
async fn usage_is_reported_before_a_component_is_removed_by_hand() {
    for profile in PROFILES {
        let (world, agent) = world(profile).await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b", "heron-70b"]).await;
        pass(&world, &agent).await;
        let held = |world: &World| world.waldur.usages(resource, "2026-11").get("heron-70b:input").copied().unwrap_or_default();
        world.gateway.chat(&world.key(resource, "project"), "heron-70b", "P=3000 C=1000").unwrap();
        world.advance(5 * MINUTE);
        world.write("catalogue.yml", &catalogue(&WITHOUT_HERON));
        past_the_hold(&world, &agent).await;
        assert_eq!(held(&world), Decimal::ZERO, "no usage pass came by");
        let order = Remove { key: "heron-70b:input".into(), ..Remove::default() };

        // Without the ledger nobody knows what would be lost.
        world.gateway.set_database(false);
        let problem = remove(&agent, &order).await.unwrap_err();
        assert!(problem.message.contains("usage cannot be reported first"), "{}", problem.message);
        world.gateway.set_database(true);
        let problem = remove(&agent, &order).await.unwrap_err();
        assert!(problem.message.contains("has usage this month (3)"), "{}", problem.message);
        assert_eq!(held(&world), Decimal::from(3));
        assert!(!name_of(&world, "heron-70b:input").unwrap().starts_with("[retired]"));
    }
}

#[tokio::test]
async fn a_model_taken_out_of_sale_on_purpose_is_no_choice_at_once_and_leaves_teams_after_the_hold() {
    let (world, agent) = world(Profile::Late2026).await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b", "heron-70b"]).await;
    let off = catalogue(&EIGHT).replace("served_name: heron-70b,", "served_name: heron-70b, orderable: false,");
    world.write("catalogue.yml", &off);
    pass(&world, &agent).await;
    assert!(!world.waldur.models(world.offering).contains(&"heron-70b".to_owned()));
    assert!(team_models(&world, resource).contains(&"heron-70b".to_owned()));
    assert_eq!(
        world.waldur.prices(world.offering)["heron-70b:input"].price.normalize().to_string(),
        "0.0002",
        "what is still used still costs"
    );
    past_the_hold(&world, &agent).await;
    assert_eq!(team_models(&world, resource), ["kestrel-8b", "qwen3-embedding-0-6b"]);
    assert!(note(&world, "heron-70b:input").get("gone").is_some());
    world.check();
}

#[tokio::test]
async fn a_model_without_components_is_remembered_as_gone_over_a_restart() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        world.write("catalogue.yml", &catalogue(&EIGHT));
        let text = world.config_text("").replace("    limits:", "    components: [aggregate]\n    billing: spend\n    limits:");
        let start = || Agent::new(world.parse(&text), world.clock.clone());
        let agent = start().await.unwrap();
        agent.offering_beat().await;
        let named = world.sold(&agent, "named", &["kestrel-8b", "heron-70b"]).await;
        let all = world.sold(&agent, "all", &["all"]).await;
        world.write("catalogue.yml", &catalogue(&WITHOUT_HERON));
        // The choice goes, and the process ends before any team is looked at.
        for _ in 0..5 {
            agent.offering_beat().await;
            world.advance(25 * MINUTE);
        }
        assert!(!world.waldur.models(world.offering).contains(&"heron-70b".to_owned()));
        let again = start().await.unwrap();
        past_the_hold(&world, &again).await;
        for resource in [named, all] {
            assert!(!team_models(&world, resource).contains(&"heron-70b".to_owned()), "{profile:?}: {:?}", team_models(&world, resource));
        }
        world.faults.reset_calls();
        pass(&world, &again).await;
        assert_eq!(world.writes(None), Vec::<String>::new());
        world.write("catalogue.yml", &catalogue(&EIGHT));
        pass(&world, &again).await;
        assert!(team_models(&world, named).contains(&"heron-70b".to_owned()));
        world.check();
    }
}
