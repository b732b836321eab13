//! The agent with a key of the gateway that may call what it needs and nothing else, and what it says when a route is missing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_agent::rights::{MODEL_ROUTES, ROUTES};
use llm_access_fixtures::faults::Peer;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::identity::{all_routes, as_refused, narrow_key};
use llm_access_tests::{Store, World, catalogue};
use serde_json::json;

const SOLD: [&str; 3] = ["kestrel-8b", "heron-70b", "qwen2.5-0.5b"];

/// What an agent said and did in a life that calls every route once.
struct Life {
    /// The conditions that held at some time.
    told: BTreeSet<String>,
    order: String,
    end: Option<String>,
}

impl Life {
    fn tells(&self, route: &str) -> bool {
        self.told.iter().any(|text| text.contains(&format!(" {}", as_refused(route))))
    }
}

async fn world_with(routes: &[&str]) -> World {
    let world = World::with_store(Profile::Late2026, Store::Directory).await;
    let key = narrow_key(world.gateway.url(), &world.gateway.master_key(), "llm-access-agent", routes).await;
    world.write("gateway-key", &key);
    world
}

fn told(agent: &Agent) -> Vec<String> {
    agent.conditions.all().into_iter().map(|(name, subject, condition)| format!("{name} {subject}: {}", condition.message)).collect()
}

/// Models come, change and go; access is ordered, drifts, is used and ends.
async fn a_life(world: &World) -> Life {
    let text = world.config_text("usage: {failed_calls: exclude}\n").replace("gateway: {", "gateway: {manage_models: true, ");
    let agent = world.patient_with(&text).await;
    let mut all = BTreeSet::new();
    let mut note = |agent: &Agent| all.extend(told(agent));
    for models in [&["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "osprey-3b"][..], &SOLD] {
        // The first time it is added, the second time it is priced; after that it goes.
        let added = catalogue(models);
        world.write("catalogue.yml", &added);
        agent.offering_beat().await;
        note(&agent);
        let priced = added.replace(
            "served_name: osprey-3b",
            "served_name: osprey-3b, litellm_model_info: {input_cost_per_token: 1e-07, output_cost_per_token: 1e-07}",
        );
        world.write("catalogue.yml", &priced);
        for _ in 0..5 {
            agent.offering_beat().await;
            note(&agent);
            world.advance(Duration::from_secs(1300));
        }
    }
    world.gateway.set_default_key_params(json!({"max_budget": 5}));
    let (order, resource) = world.order("llm", &["kestrel-8b"]);
    for _ in 0..3 {
        world.beat(&agent).await;
        note(&agent);
        world.slow_beat(&agent).await;
        note(&agent);
        world.advance(Duration::from_secs(60));
    }
    let id = resource.simple().to_string();
    world.gateway.edit_team(&id, &json!({"max_budget": 900}));
    world.slow_beat(&agent).await;
    note(&agent);
    if world.waldur.order_state(order) == "done" {
        world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=1000 C=100").unwrap();
        world.gateway.flush();
        drop(agent.usage_beat().await);
        note(&agent);
    }
    let mut end = None;
    if world.waldur.resource(resource).state == "OK" {
        let order = world.waldur.terminate(resource);
        for _ in 0..10 {
            world.beat(&agent).await;
            note(&agent);
            world.advance(Duration::from_secs(120));
        }
        end = Some(world.waldur.order_state(order));
    }
    Life { told: all, order: world.waldur.order_state(order), end }
}

/// `check` by the program: whether it found nothing wrong, and what it said.
async fn check(world: &World, manage_models: bool) -> (bool, String) {
    let text = world.config_text("").replace("gateway: {", &format!("gateway: {{manage_models: {manage_models}, "));
    let config = world.write("check.yml", &text);
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_agent-under-test"));
    let output = command.arg("--config").arg(config).arg("check").stdin(Stdio::null()).output().await.unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test]
async fn the_documented_routes_are_enough_for_everything_and_each_of_them_is_called() {
    let world = world_with(&all_routes()).await;
    let life = a_life(&world).await;
    let refused: Vec<&String> = life.told.iter().filter(|text| text.contains("403") || text.contains("refuses the agent")).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    assert_eq!((life.order.as_str(), life.end.as_deref()), ("done", Some("done")), "{:#?}", life.told);
    world.check();
    // `check` alone asks about the key.
    for route in all_routes().into_iter().filter(|route| *route != "/key/info") {
        let beginning = route.trim_end_matches('*');
        let calls = world.faults.calls();
        assert!(calls.iter().any(|call| call.peer == Peer::LiteLlm && call.path.starts_with(beginning)), "{route} is not needed");
    }
}

#[tokio::test]
async fn a_missing_route_is_named_and_errs_nothing() {
    // What one pass may not read, and what only an end or a drift needs, holds no create up.
    let needed_by_a_create = ["/v2/team/list", "/team/info", "/team/new", "/key/generate", "/key/update"];
    let mut wrong = Vec::new();
    for left_out in all_routes().into_iter().filter(|route| *route != "/key/info") {
        let routes: Vec<&str> = all_routes().into_iter().filter(|route| *route != left_out).collect();
        let world = world_with(&routes).await;
        let life = a_life(&world).await;
        let fits = |state: &str| ["done", "executing"].contains(&state);
        let is_done = life.order == "done";
        // A log of calls that cannot be read proves nothing, and is a warning in the agent's log.
        if !(life.tells(left_out) || left_out == "/spend/logs/v2")
            || !fits(&life.order)
            || !life.end.as_deref().is_none_or(fits)
            || is_done == needed_by_a_create.contains(&left_out)
        {
            wrong.push(format!("without {left_out} the create is {}, the end {:?}: {:#?}", life.order, life.end, life.told));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn check_tells_the_routes_that_are_missing() {
    for left_out in [ROUTES[0], ROUTES[5], ROUTES[6], ROUTES[8], ROUTES[12], MODEL_ROUTES[1]] {
        let routes: Vec<&str> = all_routes().into_iter().filter(|route| *route != left_out.path).collect();
        let world = World::in_real_time(Profile::Late2026, Store::Directory).await;
        let key = narrow_key(world.gateway.url(), &world.gateway.master_key(), "llm-access-agent", &routes).await;
        world.write("gateway-key", &key);
        let (fine, said) = check(&world, true).await;
        let line = said.lines().find(|line| line.starts_with("FAIL  gateway")).unwrap_or_default();
        assert!(!fine && line.contains(left_out.path), "{}\n{said}", left_out.path);
        assert!(!said.contains(&key), "{said}");
    }
    let world = World::in_real_time(Profile::Late2026, Store::Directory).await;
    let (fine, said) = check(&world, false).await;
    assert!(fine && said.contains("gateway rights: the master key"), "{said}");
    let narrow: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
    let wide = [&narrow[..], &["/user/new"]].concat();
    let verdicts = [
        (&narrow[..], "may call the 13 routes that are needed and no others"),
        (&wide, "and more: /user/new"),
        (&["management_routes", "/team/daily/activity"], "groups of routes (management_routes)"),
        (&[], "every route that its user's role allows"),
    ];
    for (n, (routes, words)) in verdicts.into_iter().enumerate() {
        let key = narrow_key(world.gateway.url(), &world.gateway.master_key(), &format!("agent-{n}"), routes).await;
        world.write("gateway-key", &key);
        let (fine, said) = check(&world, false).await;
        assert!(fine && said.contains(words), "{words}\n{said}");
    }
}
