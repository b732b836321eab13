//! Faults that people met in the field with neighbours of this product, each as a small story. The number names the case.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_agent::resources::Loop;
use llm_access_fixtures::faults::{Call, Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::checker::hash;
use llm_access_tests::{CHAT_NAMESPACE, KEY_NAMESPACE, PROFILES, Store, World};
use serde_json::{Value, json};
use uuid::Uuid;

const MINUTE: Duration = Duration::from_secs(60);

/// A fresh agent that no busy machine makes give up a call.
async fn patient(world: &World) -> Agent {
    patient_with(world, &world.config_text("")).await
}

async fn patient_with(world: &World, text: &str) -> Agent {
    assert!(text.contains("timeout: 400ms"), "{text}");
    Agent::new(world.parse(&text.replace("timeout: 400ms", "timeout: 30s")), world.clock.clone()).await.unwrap()
}

/// `n` resources that customers have, put right by the slow beat.
async fn living(world: &World, agent: &Agent, n: usize) -> Vec<Uuid> {
    let resources: Vec<Uuid> = (0..n)
        .map(|i| {
            world.waldur.add_resource(
                world.offering,
                &world.project,
                &format!("llm-{i}"),
                &["kestrel-8b"],
                &[("max_budget", "50"), ("tpm_limit", "1000")],
            )
        })
        .collect();
    world.slow_beat(agent).await;
    world.slow_beat(agent).await;
    world.check();
    world.faults.reset_calls();
    resources
}

/// An agent of an offering whose limits are `limits`.
async fn agent_with_limits(world: &World, limits: &str) -> Agent {
    let text = world.config_text("");
    let usual = "limits: {max_budget: {default: 20, max: 1000}, tpm_limit: {default: 100000}, rpm_limit: {default: 600}}";
    assert!(text.contains(usual), "{text}");
    patient_with(world, &text.replace(usual, &format!("limits: {limits}"))).await
}

/// Calls that change something, to one peer, whose path contains `part`.
fn posts(world: &World, peer: Peer, part: &str) -> Vec<Call> {
    world.faults.calls().into_iter().filter(|call| call.method != "GET" && call.peer == peer && call.path.contains(part)).collect()
}

fn bodies(calls: &[Call]) -> Vec<Value> {
    calls.iter().map(|call| serde_json::from_str(&call.body).unwrap()).collect()
}

fn to(world: &World, peer: Peer) -> usize {
    world.faults.calls().iter().filter(|call| call.peer == peer).count()
}

fn condition(agent: &Agent, name: &str) -> Option<String> {
    agent.conditions.all().into_iter().find(|(n, ..)| *n == name).map(|(_, _, condition)| condition.message)
}

fn none() -> Vec<String> {
    Vec::new()
}

fn id(resource: Uuid) -> String {
    resource.simple().to_string()
}

/// Ten times both beats, a minute apart.
async fn ten_passes(world: &World, agent: &Agent) {
    for _ in 0..10 {
        world.beat(agent).await;
        world.slow_beat(agent).await;
        world.advance(MINUTE);
    }
}

// ---- C02: lost rights look like "no resources" ----------------------------------------------------------------------

async fn lost_role(profile: Profile) {
    let world = World::new(profile).await;
    let agent = patient(&world).await;
    living(&world, &agent, 40).await;
    world.waldur.hide_all(true);
    ten_passes(&world, &agent).await;
    assert_eq!(world.writes(None), none());
    let message = condition(&agent, "lost-sight").unwrap_or_else(|| panic!("{profile:?}: {:?}", agent.conditions.all()));
    assert!(message.contains("0 of 40"), "{message}");

    world.waldur.hide_all(false);
    ten_passes(&world, &agent).await;
    assert_eq!(world.writes(None), none());
    assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
    world.check();
}

#[tokio::test]
async fn c02_an_agent_that_lost_its_role_removes_nothing_and_says_what_it_lost_2024() {
    lost_role(Profile::Y2024).await;
}

#[tokio::test]
async fn c02_an_agent_that_lost_its_role_removes_nothing_and_says_what_it_lost_mid_2026() {
    lost_role(Profile::V8_0).await;
}

#[tokio::test]
async fn c02_an_agent_that_lost_its_role_removes_nothing_and_says_what_it_lost_late_2026() {
    lost_role(Profile::Late2026).await;
}

#[tokio::test]
async fn c02_a_fresh_agent_without_rights_removes_nothing_either() {
    let world = World::new(Profile::Late2026).await;
    living(&world, &patient(&world).await, 12).await;
    world.waldur.hide_all(true);
    let restarted = patient(&world).await;
    ten_passes(&world, &restarted).await;
    assert_eq!(world.writes(None), none());
    assert!(condition(&restarted, "lost-sight").is_some());
}

#[tokio::test]
async fn c02_a_wrong_offering_uuid_removes_nothing_and_is_named() {
    let world = World::new(Profile::Late2026).await;
    living(&world, &patient(&world).await, 12).await;
    let wrong = Uuid::from_u128(0x77);
    let agent = patient_with(&world, &world.config_text_for(&[wrong], "")).await;
    ten_passes(&world, &agent).await;
    assert_eq!(world.writes(None), none());
    let said = format!("{:?}", agent.conditions.all());
    assert!(said.contains(&id(wrong)), "{said}");
}

#[tokio::test]
async fn c02_an_archived_offering_ends_nothing() {
    let world = World::new(Profile::Y2024).await;
    let agent = patient(&world).await;
    living(&world, &agent, 12).await;
    world.waldur.set_offering_state(world.offering, "Archived");
    ten_passes(&world, &agent).await;
    assert_eq!(world.writes(None), none());
    world.check();
}

#[tokio::test]
async fn c02_a_page_that_is_empty_against_the_count_is_a_failed_read() {
    missing_page(200).await;
}

#[tokio::test]
async fn c02_a_page_that_is_missing_is_a_failed_read() {
    missing_page(404).await;
}

async fn missing_page(status: u16) {
    let world = World::new(Profile::Y2024).await;
    let agent = patient(&world).await;
    living(&world, &agent, 40).await;
    world.waldur.set_page_cap(20);
    let (body, headers) = match status {
        200 => ("[]", vec![("X-Result-Count".to_owned(), "40".to_owned())]),
        _ => (r#"{"detail": "Invalid page."}"#, Vec::new()),
    };
    let rule = world.faults.add(Rule::new(Fault::Replace { status, headers, body: body.into() }).peer(Peer::Waldur).path("&page=2&"));
    ten_passes(&world, &agent).await;
    assert_eq!(world.writes(None), none());
    let message = condition(&agent, "resources-unread").expect("a condition");
    assert!(message.contains("40") && message.contains("20"), "{message}");
    assert!(!agent.conditions.holds("lost-sight"), "what was not read is not lost");
    world.faults.remove(rule);
    ten_passes(&world, &agent).await;
    assert_eq!(world.writes(None), none());
    assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
    world.check();
}

#[tokio::test]
async fn c02_only_what_waldur_shows_as_ended_is_removed() {
    let world = World::new(Profile::Late2026).await;
    world.ends_in_trouble("what Waldur does not show is left for a person to judge");
    let agent = patient(&world).await;
    let resources = living(&world, &agent, 40).await;
    // One row is gone without a word, another is shown as ended.
    world.waldur.unlink(resources[7]);
    world.waldur.put_resource_state(resources[8], "Terminated");
    ten_passes(&world, &agent).await;
    assert!(world.gateway.team(&id(resources[7])).is_some(), "a row that is not shown proves nothing");
    assert_eq!(world.secrets(resources[7]).len(), 2);
    assert!(condition(&agent, "resource-not-shown").unwrap().contains(&id(resources[7])));
    assert!(world.gateway.team(&id(resources[8])).is_none());
    assert!(world.secrets(resources[8]).is_empty());
    // More than one in twenty out of sight: now nothing is removed, not even what is shown as ended.
    for resource in &resources[9..12] {
        world.waldur.unlink(*resource);
    }
    world.waldur.put_resource_state(resources[12], "Terminated");
    world.faults.reset_calls();
    ten_passes(&world, &agent).await;
    assert_eq!(world.writes(None), none());
    let message = condition(&agent, "lost-sight").expect("a condition");
    assert!(message.contains("35 of 39"), "{message}");
}

// ---- C06: our own credential is rotated -----------------------------------------------------------------------------

fn twelve_orders(world: &World) -> Vec<Uuid> {
    (0..12).map(|n| world.order(&format!("llm-{n}"), &["kestrel-8b"]).0).collect()
}

fn states(world: &World, orders: &[Uuid]) -> BTreeSet<String> {
    orders.iter().map(|order| world.waldur.order_state(*order)).collect()
}

/// Writes a file anew and gives it the time of change it had before.
fn replace_secretly(world: &World, name: &str, content: &str) {
    let path = world.path(name);
    let changed = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, content).unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(changed).unwrap();
}

#[tokio::test]
async fn c06_a_rotated_gateway_key_errs_no_order_and_costs_one_probe_per_beat() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = patient(&world).await;
        let orders = twelve_orders(&world);
        world.gateway.rotate_master_key("sk-master-9999");
        world.beat(&agent).await;
        assert!(condition(&agent, "gateway-credential").is_some(), "{:?}", agent.conditions.all());
        for _ in 0..6 {
            world.advance(Duration::from_secs(15));
            world.faults.reset_calls();
            world.beat(&agent).await;
            assert_eq!(to(&world, Peer::LiteLlm), 1, "{:?}", world.faults.calls());
            assert_eq!(world.writes(None), none());
        }
        assert_eq!(states(&world, &orders), BTreeSet::from(["executing".to_owned()]), "{profile:?}");
        replace_secretly(&world, "gateway-key", "sk-master-9999");
        world.beat(&agent).await;
        assert_eq!(states(&world, &orders), BTreeSet::from(["done".to_owned()]), "{profile:?}: {:?}", agent.schedule.waiting());
        assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
        world.check();
    }
}

#[tokio::test]
async fn c06_a_rotated_waldur_token_errs_no_order_and_costs_one_probe_per_beat() {
    for profile in PROFILES {
        let world = Arc::new(World::new(profile).await);
        let agent = patient(&world).await;
        let orders = twelve_orders(&world);
        // Somewhere in the middle of the twelve.
        let waldur = world.waldur.clone();
        world.faults.before_call(90, move || drop(waldur.rotate_agent_token()));
        world.beat(&agent).await;
        assert!(condition(&agent, "waldur-credential").is_some(), "{:?}", agent.conditions.all());
        for _ in 0..6 {
            world.advance(Duration::from_secs(15));
            world.faults.reset_calls();
            world.beat(&agent).await;
            assert_eq!(world.faults.count(), 1, "{:?}", world.faults.calls());
            world.slow_beat(&agent).await;
            assert!(world.faults.count() <= 2, "{:?}", world.faults.calls());
        }
        assert!(!states(&world, &orders).contains("erred"));
        assert!(!states(&world, &orders).contains("rejected"));
        replace_secretly(&world, "waldur-token", &world.waldur.agent_token());
        world.beat(&agent).await;
        world.slow_beat(&agent).await;
        assert_eq!(states(&world, &orders), BTreeSet::from(["done".to_owned()]), "{profile:?}: {:?}", agent.schedule.waiting());
        assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
        world.check();
    }
}

#[tokio::test]
async fn c06_both_files_are_replaced_while_twelve_orders_execute() {
    for at in [30, 61, 95, 140] {
        let world = Arc::new(World::new(Profile::Late2026).await);
        let agent = patient(&world).await;
        let orders = twelve_orders(&world);
        // The new key is good at once, the file follows a little later.
        let there = world.clone();
        world.faults.before_call(at, move || {
            there.gateway.rotate_master_key("sk-master-9999");
            let _new = there.waldur.rotate_agent_token();
        });
        let there = world.clone();
        world.faults.before_call(at + 7, move || {
            replace_secretly(&there, "gateway-key", "sk-master-9999\n");
            replace_secretly(&there, "waldur-token", &there.waldur.agent_token());
        });
        for _ in 0..4 {
            world.beat(&agent).await;
            assert!(!states(&world, &orders).contains("erred"), "{at}");
            world.advance(Duration::from_secs(15));
        }
        assert_eq!(
            states(&world, &orders),
            BTreeSet::from(["done".to_owned()]),
            "{at}: {:?} {:?}",
            agent.schedule.waiting(),
            agent.conditions.all()
        );
        assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
        world.check();
    }
}

#[tokio::test]
async fn c06_a_missing_right_is_named_and_no_order_is_blamed() {
    let cases = [
        (Peer::Waldur, "set_backend_id", r#"{"detail": "You do not have permission to perform this action."}"#, "set_backend_id"),
        (
            Peer::LiteLlm,
            "/team/new",
            r#"{"error": {"message": "This is only available for LiteLLM Enterprise users", "type": "auth_error", "param": "None", "code": "403"}}"#,
            "/team/new",
        ),
    ];
    for (peer, path, body, words) in cases {
        let world = World::new(Profile::Late2026).await;
        let agent = patient(&world).await;
        let orders = twelve_orders(&world);
        let rule = world.faults.add(Rule::new(Fault::status(403, body)).peer(peer).path(path));
        for beat in 0..8 {
            world.faults.reset_calls();
            world.beat(&agent).await;
            let tried = posts(&world, peer, path).len();
            // The first beat may find out with all of them at once; afterwards it is asked once per beat at most.
            assert!(beat == 0 || tried <= 1, "{words}: tried {tried} times in beat {beat}");
            let said: Vec<_> = agent.conditions.all().into_iter().filter(|(.., condition)| condition.message.contains(words)).collect();
            assert_eq!(said.len(), 1, "{words}: {:?}", agent.conditions.all());
            world.advance(Duration::from_secs(15));
        }
        assert_eq!(states(&world, &orders), BTreeSet::from(["executing".to_owned()]), "{words}");
        world.faults.remove(rule);
        world.run_to_rest(&agent, 10).await;
        assert_eq!(states(&world, &orders), BTreeSet::from(["done".to_owned()]), "{words}");
        world.slow_beat(&agent).await;
        assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
        world.check();
    }
}

// ---- C08: gateway-wide defaults creep into our teams ----------------------------------------------------------------

#[tokio::test]
async fn c08_defaults_that_nobody_ordered_are_cleared_before_the_order_is_done() {
    let world = World::new(Profile::Late2026).await;
    world.gateway.set_default_team_params(json!({"max_budget": 100, "budget_duration": "30d", "tpm_limit": 1000}));
    let agent = agent_with_limits(&world, "{allow_unlimited: true}").await;
    let (order, resource) = world.waldur.order(world.offering, &world.project, "free", &["kestrel-8b"], &[]);
    world.beat(&agent).await;
    assert_eq!(world.waldur.order_state(order), "done", "{:?}", agent.schedule.waiting());
    let team = world.gateway.team(&id(resource)).unwrap();
    assert_eq!((team.max_budget, team.tpm_limit, team.rpm_limit), (None, None, None));
    let updates = bodies(&posts(&world, Peer::LiteLlm, "/team/update"));
    assert_eq!(updates, [json!({"team_id": id(resource), "max_budget": null, "tpm_limit": null})]);
    // The clearing was read back before the end was told.
    let calls = world.faults.calls();
    let at = |part: &str| calls.iter().rposition(|call| call.path.contains(part)).unwrap();
    assert!(at("/team/update") < at("/team/info") && at("/team/info") < at("set_state_done"), "{calls:?}");
    world.faults.reset_calls();
    ten_passes(&world, &agent).await;
    assert_eq!(world.writes(None), none());
    world.check();
}

#[tokio::test]
async fn c08_an_order_stays_open_where_the_proxy_cannot_clear_its_defaults() {
    let world = World::new(Profile::Late2026).await;
    world.gateway.set_default_team_params(json!({"max_budget": 100}));
    let agent = agent_with_limits(&world, "{allow_unlimited: true}").await;
    // The proxy says yes and keeps its default.
    let rule = world
        .faults
        .add(Rule::new(Fault::Replace { status: 200, headers: Vec::new(), body: "{}".into() }).peer(Peer::LiteLlm).path("/team/update"));
    let (order, resource) = world.waldur.order(world.offering, &world.project, "free", &["kestrel-8b"], &[]);
    for _ in 0..5 {
        world.beat(&agent).await;
        world.advance(MINUTE);
    }
    assert_eq!(world.waldur.order_state(order), "executing");
    assert_eq!(world.gateway.team(&id(resource)).unwrap().max_budget.unwrap().to_string(), "100");
    let waiting = agent.schedule.waiting();
    assert!(waiting.iter().any(|(_, _, why)| why.contains("default_team_params") && why.contains("max_budget")), "{waiting:?}");
    let said = format!("{:?}", agent.conditions.all());
    assert!(said.contains("default_team_params") && said.contains("max_budget"), "{said}");
    world.faults.remove(rule);
    world.run_to_rest(&agent, 20).await;
    assert_eq!(world.waldur.order_state(order), "done");
    assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
    world.check();
}

#[tokio::test]
async fn c08_what_the_gateway_gives_a_key_of_its_own_is_cleared_before_the_order_is_done() {
    for forbid in [false, true] {
        let world = World::new(Profile::Late2026).await;
        world.gateway.forbid_custom_keys(forbid);
        world.gateway.set_default_key_params(
            json!({"max_budget": 1.5, "tpm_limit": 10, "rpm_limit": 1, "duration": "30d", "models": ["qwen2.5-0.5b"]}),
        );
        let agent = patient(&world).await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        let key = world.key(resource, "project");
        for (slot, key) in [("project", key.clone()), ("chat", world.key(resource, "chat"))] {
            for _ in 0..3 {
                world.gateway.chat(&key, "kestrel-8b", "P=1000 C=10").unwrap_or_else(|refusal| panic!("{slot}: {refusal:?}"));
            }
        }
        world.faults.reset_calls();
        ten_passes(&world, &agent).await;
        assert_eq!(world.writes(None), none());
        // Two months later the key still works.
        world.advance(MINUTE * 60 * 24 * 61);
        world.gateway.chat(&key, "kestrel-8b", "P=1 C=1").unwrap();
        // What somebody sets by hand on a key goes as well: one small call.
        world.gateway.edit_key(&llm_access_tests::checker::hash(&key), &json!({"max_budget": 0.01}));
        world.faults.reset_calls();
        world.slow_beat(&agent).await;
        assert_eq!(
            bodies(&posts(&world, Peer::LiteLlm, "/key/update")),
            [json!({"key": llm_access_tests::checker::hash(&key), "max_budget": null})]
        );
        world.check();
    }
}

// ---- C09: an idle pass must write nothing ---------------------------------------------------------------------------

#[tokio::test]
async fn c09_fifty_resources_at_rest_are_left_alone_and_one_edit_is_one_small_repair() {
    let world = World::new(Profile::Late2026).await;
    let agent = patient(&world).await;
    let resources = living(&world, &agent, 50).await;
    for (n, resource) in resources.iter().enumerate() {
        let team = world.gateway.team(&id(*resource)).unwrap();
        let mut models = team.models.clone();
        models.reverse();
        let mut metadata = team.metadata.clone();
        for (name, value) in [("logging", json!([])), ("guardrails", json!([])), ("cost_centre", json!("77")), ("n", json!(1e-7))] {
            metadata[name] = value;
        }
        world.gateway.edit_team(&team.team_id, &json!({"models": models, "metadata": metadata, "max_budget": 50.0})).unwrap();
        world.gateway.set_spend(&team.team_id, if n % 2 == 0 { "-0.0000000000000000002" } else { "17.25" }.parse().unwrap());
    }
    let resets = |world: &World| resources.iter().map(|r| world.gateway.team(&id(*r)).unwrap().budget_reset_at).collect::<Vec<_>>();
    let before = resets(&world);
    for _ in 0..20 {
        world.beat(&agent).await;
        world.slow_beat(&agent).await;
        world.advance(MINUTE);
    }
    assert_eq!(world.writes(None), none());
    assert_eq!(resets(&world), before);

    let edited = id(resources[20]);
    world.gateway.edit_team(&edited, &json!({"tpm_limit": 2000})).unwrap();
    for _ in 0..3 {
        world.slow_beat(&agent).await;
        world.advance(MINUTE);
    }
    assert_eq!(world.writes(None), ["POST /team/update"]);
    assert_eq!(bodies(&posts(&world, Peer::LiteLlm, "")), [json!({"team_id": edited, "tpm_limit": 1000})]);
    world.check();
}

// ---- C14: removing a limit means "none", not zero -------------------------------------------------------------------

#[tokio::test]
async fn c14_a_limit_taken_away_is_an_explicit_null_and_zero_blocks() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = agent_with_limits(&world, "{allow_unlimited: true}").await;
        let (order, resource) =
            world.waldur.order(world.offering, &world.project, "llm", &["kestrel-8b"], &[("max_budget", "50"), ("tpm_limit", "1000")]);
        world.beat(&agent).await;
        assert_eq!(world.waldur.order_state(order), "done");
        let change = async |limits: &[(&str, &str)]| {
            world.faults.reset_calls();
            let order = world.waldur.update_limits(resource, limits);
            world.beat(&agent).await;
            assert_eq!(world.waldur.order_state(order), "done", "{profile:?} {limits:?}: {:?}", agent.schedule.waiting());
            bodies(&posts(&world, Peer::LiteLlm, ""))
        };
        let team = || world.gateway.team(&id(resource)).unwrap();

        assert_eq!(change(&[("tpm_limit", "1000")]).await, [json!({"team_id": id(resource), "max_budget": null})]);
        assert_eq!((team().max_budget, team().tpm_limit), (None, Some(1000)));
        world.check();

        // Nothing left to spend: the first call would still pass under a budget of 0, so calls are blocked.
        let sent = change(&[("max_budget", "0"), ("tpm_limit", "1000")]).await;
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(sent[0]["blocked"], true, "{sent:?}");
        assert!(world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=1 C=1").is_err());
        world.check();

        let sent = change(&[("max_budget", "1000000000000000")]).await;
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(sent[0]["tpm_limit"], Value::Null);
        assert_eq!(team().max_budget.unwrap().to_string(), "1000000000000000");
        assert!(!team().blocked);
        world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=1 C=1").unwrap();
        world.check();
    }
}

#[tokio::test]
async fn c14_a_decimal_limit_is_kept_to_the_digit() {
    let world = World::new(Profile::Late2026).await;
    let agent = patient(&world).await;
    let (order, resource) = world.waldur.order(world.offering, &world.project, "llm", &["kestrel-8b"], &[("max_budget", "12.5")]);
    world.beat(&agent).await;
    assert_eq!(world.waldur.order_state(order), "done");
    assert_eq!(world.gateway.team(&id(resource)).unwrap().max_budget.unwrap().to_string(), "12.5");
    world.faults.reset_calls();
    ten_passes(&world, &agent).await;
    assert_eq!(world.writes(None), none());
}

// ---- C16: last writer nulls the admin's settings --------------------------------------------------------------------

#[tokio::test]
async fn c16_our_mark_is_restored_beside_foreign_entries_and_two_writers_are_named() {
    let world = World::new(Profile::Late2026).await;
    let agent = patient(&world).await;
    let resource = living(&world, &agent, 3).await[1];
    let team = || world.gateway.team(&id(resource)).unwrap();
    let mark = team().metadata;
    // The proxy writes its own entries, and ours are gone.
    let theirs = json!({"team_member_budget_id": "b-7", "logging": [], "cost_centre": "77"});
    let overwrite = || {
        world.gateway.edit_team(&id(resource), &json!({"metadata": theirs})).unwrap();
    };
    overwrite();
    for _ in 0..3 {
        world.slow_beat(&agent).await;
        world.advance(MINUTE);
    }
    let sent = bodies(&posts(&world, Peer::LiteLlm, ""));
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sent[0].as_object().unwrap().keys().collect::<Vec<_>>(), ["metadata", "team_id"]);
    for (name, value) in theirs.as_object().unwrap().iter().chain(mark.as_object().unwrap()) {
        assert_eq!(&team().metadata[name], value, "{name}");
    }

    // Once more is repaired; from then on the agent says so and does not fight on, and does not give the team up either.
    world.faults.reset_calls();
    for _ in 0..20 {
        overwrite();
        world.beat(&agent).await;
        world.slow_beat(&agent).await;
        world.advance(MINUTE);
    }
    let sent = posts(&world, Peer::LiteLlm, "");
    assert_eq!(sent.len(), 1, "{:?}", bodies(&sent));
    let message = condition(&agent, "two-writers").expect("a condition");
    assert!(message.contains(&id(resource)) && message.contains("two writers"), "{message}");
    assert_eq!(team().models.len(), 2);
    assert_eq!(world.gateway.live_keys(&id(resource)).len(), 2);

    // The other writer leaves: within two hours all is well again.
    for _ in 0..24 {
        world.slow_beat(&agent).await;
        world.advance(5 * MINUTE);
    }
    assert_eq!(team().metadata["owner"], "icarus");
    assert_eq!(team().metadata["cost_centre"], "77");
    assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
    world.check();
}

// ---- C18: a recreated team takes its keys with it -------------------------------------------------------------------

#[tokio::test]
async fn c18_a_team_that_was_deleted_comes_back_with_the_stored_keys() {
    for store in [Store::Kube, Store::Directory] {
        for profile in PROFILES {
            let world = World::with_store(profile, store).await;
            let agent = patient(&world).await;
            let resource = world.sold(&agent, "llm", &["kestrel-8b"]).await;
            let keys = ["project", "chat"].map(|slot| world.key(resource, slot));
            world.gateway.chat(&keys[0], "kestrel-8b", "P=1000 C=1000").unwrap();
            world.advance(MINUTE);
            let versions = || world.kube.secrets().into_iter().map(|secret| secret.resource_version).collect::<Vec<_>>();
            let before = (world.secrets(resource), versions(), world.waldur.api_keys(resource));
            assert!(world.gateway.delete_team(&id(resource)));
            world.faults.reset_calls();
            world.slow_beat(&agent).await;
            world.check();
            assert_eq!((world.secrets(resource), versions(), world.waldur.api_keys(resource)), before, "{store:?} {profile:?}");
            for key in &keys {
                world.gateway.chat(key, "kestrel-8b", "P=1 C=1").unwrap();
            }
            let calls = world.faults.calls();
            let at = |part: &str| calls.iter().position(|call| call.method == "POST" && call.path.contains(part)).unwrap();
            assert!(at("/team/new") < at("/key/generate"), "{calls:?}");
            assert_eq!(world.writes(Some(Peer::Waldur)), none());
            world.faults.reset_calls();
            ten_passes(&world, &agent).await;
            assert_eq!(world.writes(None), none());
        }
    }
}

// ---- C21: cancelled before it was created ---------------------------------------------------------------------------

/// How somebody else ends an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The customer takes it back.
    Cancel,
    /// Staff rejects it while it is pending, and errs it later.
    Reject,
    /// Staff errs it.
    Err,
}

#[tokio::test]
async fn an_order_that_staff_errs_just_after_it_was_listed_is_not_carried_out() {
    for profile in PROFILES {
        let world = Arc::new(World::new(profile).await);
        let agent = patient(&world).await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        let has = || {
            let team = world.gateway.team(&id(resource)).map(|team| team.max_budget);
            (team, world.gateway.live_keys(&id(resource)).len(), world.secrets(resource).len())
        };
        let before = has();
        let end = world.waldur.terminate(resource);
        world.beat(&agent).await;
        let update = {
            // It is drained, and would be removed next.
            world.advance(Duration::from_secs(3600));
            err_after_the_list(&world, &agent, end).await;
            assert_eq!(has(), before, "{profile:?}: a resource that goes on was removed");
            world.slow_beat(&agent).await;
            assert!(!world.gateway.team(&id(resource)).unwrap().blocked, "{profile:?}");
            world.waldur.update_limits(resource, &[("max_budget", "80")])
        };
        let down = world.faults.add(Rule::new(Fault::status(503, "")).peer(Peer::LiteLlm).method("POST"));
        world.beat(&agent).await;
        world.faults.remove(down);
        world.advance(Duration::from_secs(3600));
        err_after_the_list(&world, &agent, update).await;
        assert_eq!(has(), before, "{profile:?}: an update that failed was carried out");
        world.check();
    }
}

#[tokio::test]
async fn a_resource_whose_end_staff_calls_off_at_any_call_works_again() {
    for profile in [Profile::Y2024, Profile::Late2026] {
        for k in 1.. {
            assert!(k < 90, "an end takes fewer calls");
            let world = Arc::new(World::new(profile).await);
            let agent = patient(&world).await;
            let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
            let order = world.waldur.terminate(resource);
            world.faults.reset_calls();
            let there = Arc::clone(&world);
            world.faults.before_call(k, move || {
                if there.waldur.order_state(order) == "executing" {
                    there.waldur.staff_erred(order);
                }
            });
            world.run_to_rest(&agent, 20).await;
            if world.waldur.order_state(order) == "done" {
                if world.faults.count() < k {
                    break;
                }
                continue;
            }
            world.slow_beat(&agent).await;
            let team = world.gateway.team(&id(resource));
            assert!(team.as_ref().is_some_and(|team| !team.blocked), "{profile:?} at call {k}: {team:?}");
            assert_eq!((world.gateway.live_keys(&id(resource)).len(), world.secrets(resource).len()), (2, 2), "{profile:?} at call {k}");
            world.check();
        }
    }
}

/// A beat in which staff errs the order when the list of orders has been read.
async fn err_after_the_list(world: &Arc<World>, agent: &Agent, order: Uuid) {
    assert_eq!(world.waldur.order_state(order), "executing");
    world.faults.reset_calls();
    let there = Arc::clone(world);
    world.faults.before_call(2, move || there.waldur.staff_erred(order));
    world.beat(agent).await;
    assert_eq!(world.waldur.order_state(order), "erred");
}

async fn ended_at_every_call(profile: Profile, end: End) {
    let world = Arc::new(World::new(profile).await);
    // What the first create teaches is known from here on.
    let agent = patient(&world).await;
    let kept = world.sold(&agent, "kept", &["kestrel-8b"]).await;
    for k in 1.. {
        assert!(k < 60, "a create takes fewer calls");
        let agent = patient(&world).await;
        let (order, resource) = world.order(&format!("llm-{k}"), &["kestrel-8b"]);
        world.faults.reset_calls();
        let there = world.clone();
        world.faults.before_call(k, move || {
            let state = there.waldur.order_state(order);
            if state == "done" {
                return;
            }
            match end {
                End::Cancel => there.waldur.cancel(order),
                End::Reject if state == "pending-provider" => there.waldur.staff_reject(order),
                End::Reject | End::Err => there.waldur.staff_erred(order),
            }
        });
        world.beat(&agent).await;
        let made = world.faults.count();
        if made < k {
            assert_eq!(world.waldur.order_state(order), "done");
            break;
        }
        let state = world.waldur.order_state(order);
        assert!(["canceled", "rejected", "erred"].contains(&state.as_str()), "{profile:?} {end:?} at call {k}: {state}");
        world.slow_beat(&agent).await;
        world.beat(&agent).await;
        let calls = world.faults.calls();
        let late: Vec<&Call> = calls.iter().filter(|call| call.n > k && call.path.contains("set_state_")).collect();
        let during = &calls[k - 1];
        assert!(late.is_empty(), "{profile:?} {end:?} at call {k}, {} {}: {late:?}", during.method, during.path);
        assert_eq!(world.waldur.order_state(order), state);
        let left = (world.gateway.team(&id(resource)), world.gateway.live_keys(&id(resource)).len(), world.secrets(resource));
        assert!(
            left.0.is_none() && left.1 == 0 && left.2.is_empty(),
            "{profile:?} {end:?} at call {k}, {} {}: {left:?} {:?}",
            during.method,
            during.path,
            agent.conditions.all()
        );
        world.faults.clear();
    }
    assert!(world.gateway.team(&id(kept)).is_some());
    world.check();
}

#[tokio::test]
async fn c21_a_create_cancelled_at_any_call_leaves_nothing_2024() {
    ended_at_every_call(Profile::Y2024, End::Cancel).await;
}

#[tokio::test]
async fn c21_a_create_cancelled_at_any_call_leaves_nothing_mid_2026() {
    ended_at_every_call(Profile::V8_0, End::Cancel).await;
}

#[tokio::test]
async fn c21_a_create_cancelled_at_any_call_leaves_nothing_late_2026() {
    ended_at_every_call(Profile::Late2026, End::Cancel).await;
}

#[tokio::test]
async fn c21_a_create_rejected_at_any_call_leaves_nothing_2024() {
    ended_at_every_call(Profile::Y2024, End::Reject).await;
}

#[tokio::test]
async fn c21_a_create_rejected_at_any_call_leaves_nothing_mid_2026() {
    ended_at_every_call(Profile::V8_0, End::Reject).await;
}

#[tokio::test]
async fn c21_a_create_rejected_at_any_call_leaves_nothing_late_2026() {
    ended_at_every_call(Profile::Late2026, End::Reject).await;
}

#[tokio::test]
async fn c21_a_create_erred_at_any_call_leaves_nothing_2024() {
    ended_at_every_call(Profile::Y2024, End::Err).await;
}

#[tokio::test]
async fn c21_a_create_erred_at_any_call_leaves_nothing_mid_2026() {
    ended_at_every_call(Profile::V8_0, End::Err).await;
}

#[tokio::test]
async fn c21_a_create_erred_at_any_call_leaves_nothing_late_2026() {
    ended_at_every_call(Profile::Late2026, End::Err).await;
}

#[tokio::test]
async fn c21_an_agent_that_died_before_the_cancel_is_followed_by_one_that_cleans_up() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = patient(&world).await;
        let kept = world.sold(&agent, "kept", &["kestrel-8b"]).await;
        // Dies with a Secret in `pending` and no team; with a team and no keys; with everything but the end.
        for (n, path) in ["/team/new", "/key/generate", "set_state_done"].into_iter().enumerate() {
            let agent = patient(&world).await;
            let (order, resource) = world.order(&format!("llm-{n}"), &["kestrel-8b"]);
            world.faults.add(Rule::new(Fault::Kill { after_effect: false }).path(path));
            tokio::select! {
                () = world.beat(&agent) => panic!("it was to be killed"),
                () = world.faults.killed() => {}
            }
            drop(agent);
            world.faults.clear();
            world.waldur.cancel(order);
            assert!(!world.secrets(resource).is_empty());
            let restarted = patient(&world).await;
            world.faults.reset_calls();
            world.beat(&restarted).await;
            world.slow_beat(&restarted).await;
            assert!(world.secrets(resource).is_empty(), "{profile:?} {path}");
            assert!(world.gateway.team(&id(resource)).is_none(), "{profile:?} {path}");
            assert!(posts(&world, Peer::Waldur, "set_state_").is_empty());
        }
        assert!(world.gateway.team(&id(kept)).is_some());
        world.check();
    }
}

// ---- C27: Secret emptied or half-written ----------------------------------------------------------------------------

/// The new key was stored before it was registered and proven before the old one went.
fn stored_registered_proven_removed(world: &World, store: Store) {
    let calls = world.faults.calls();
    let place = |method: &str, peer: Peer, part: &str| {
        calls.iter().position(|call| call.method == method && call.peer == peer && call.path.contains(part))
    };
    let registered = place("POST", Peer::LiteLlm, "/key/generate").expect("registered");
    let proven = place("GET", Peer::LiteLlm, "/v1/models").expect("proven");
    let removed = place("POST", Peer::LiteLlm, "/key/delete").expect("removed");
    assert!(registered < proven && proven < removed, "{calls:?}");
    if store == Store::Kube {
        let stored = calls
            .iter()
            .position(|call| call.peer == Peer::Kube && matches!(call.method.as_str(), "POST" | "PATCH" | "PUT"))
            .expect("stored");
        assert!(stored < registered, "{calls:?}");
    }
}

#[tokio::test]
async fn c27_a_secret_that_lost_its_key_gets_a_new_one_and_the_old_key_dies() {
    type Damage = fn(&World, &str, &str);
    let damages: [(&str, Damage); 5] = [
        ("variable missing", |world, namespace, name| {
            world
                .kube
                .edit_as("kubectl-edit", namespace, name, |edit| edit.data.retain(|variable, _| !variable.contains("OPENAI_API_KEY")));
        }),
        ("variable empty", |world, namespace, name| {
            world.kube.edit_as("kubectl-edit", namespace, name, |edit| {
                edit.data.iter_mut().filter(|(variable, _)| variable.contains("OPENAI_API_KEY")).for_each(|(_, value)| value.clear());
            });
        }),
        ("data replaced", |world, namespace, name| {
            world.kube.edit_as("other-operator", namespace, name, |edit| {
                edit.data = [("PASSWORD".to_owned(), "hunter2".to_owned())].into();
            });
        }),
        ("another key", |world, namespace, name| {
            world.kube.edit_as("kubectl-edit", namespace, name, |edit| {
                edit.data
                    .iter_mut()
                    .filter(|(variable, _)| variable.contains("OPENAI_API_KEY"))
                    .for_each(|(_, value)| "sk-chosen-by-an-intruder-0123456789".clone_into(value));
            });
        }),
        ("deleted", |world, namespace, name| assert!(world.kube.delete(namespace, name))),
    ];
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = patient(&world).await;
        for (what, damage) in &damages {
            for (slot, namespace) in [("project", KEY_NAMESPACE), ("chat", CHAT_NAMESPACE)] {
                let resource = world.sold(&agent, &format!("{what} {slot}"), &["kestrel-8b"]).await;
                let other = if slot == "chat" { "project" } else { "chat" };
                let (old, sibling) = (world.key(resource, slot), world.key(resource, other));
                let name = world
                    .kube
                    .secrets()
                    .into_iter()
                    .find(|s| s.namespace == namespace && s.labels["llm-access.io/resource"] == id(resource))
                    .unwrap()
                    .name;
                damage(&world, namespace, &name);
                world.faults.reset_calls();
                world.slow_beat(&agent).await;
                assert_eq!(agent.conditions.all(), [], "{profile:?}: {what} {slot}; {:?}", agent.schedule.waiting());
                world.check();
                let new = world.key(resource, slot);
                assert!(new != old && new != sibling && new.starts_with("sk-") && new.len() == 67, "{what} {slot}");
                assert_eq!(world.key(resource, other), sibling);
                assert!(world.gateway.verdict(&old, "kestrel-8b").is_err(), "{what} {slot}: the old key still works");
                stored_registered_proven_removed(&world, Store::Kube);
                world.faults.reset_calls();
                world.slow_beat(&agent).await;
                assert_eq!(world.writes(None), none(), "{what} {slot}");
            }
        }
    }
}

#[tokio::test]
async fn c27_a_damaged_file_gets_a_new_key_and_the_old_one_dies() {
    let world = World::with_store(Profile::Late2026, Store::Directory).await;
    let agent = patient(&world).await;
    type Damage = fn(String) -> Option<String>;
    let damages: [(&str, Damage); 3] = [
        ("cut", |text| Some(text[..text.find("OPENAI_API_KEY").unwrap() + 12].to_owned())),
        ("key emptied", |text| {
            Some(
                text.lines()
                    .map(|line| {
                        if line.contains("OPENAI_API_KEY") {
                            format!("{}=\n", line.split('=').next().unwrap())
                        } else {
                            format!("{line}\n")
                        }
                    })
                    .collect(),
            )
        }),
        ("deleted", |_| None),
    ];
    for (what, damage) in damages {
        for slot in ["project", "chat"] {
            let resource = world.sold(&agent, &format!("{what} {slot}"), &["kestrel-8b"]).await;
            let old = world.key(resource, slot);
            let prefix = if slot == "chat" { "llm-webui-" } else { "llm-key-" };
            let suffix = format!("{}.env", &id(resource)[..8]);
            let path = fs::read_dir(world.secrets_folder()).unwrap().map(|entry| entry.unwrap().path()).find(|path| {
                let name = path.file_name().unwrap().to_str().unwrap();
                name.starts_with(prefix) && name.ends_with(&suffix)
            });
            let path = path.unwrap();
            match damage(fs::read_to_string(&path).unwrap()) {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            world.faults.reset_calls();
            world.slow_beat(&agent).await;
            world.check();
            assert_ne!(world.key(resource, slot), old);
            assert!(world.gateway.verdict(&old, "kestrel-8b").is_err(), "{what} {slot}: the old key still works");
            stored_registered_proven_removed(&world, Store::Directory);
        }
    }
}

#[tokio::test]
async fn c27_a_key_that_one_of_two_variables_still_holds_is_kept() {
    for (variable, value) in
        [("OPENAI_API_KEYS", None), ("OPENAI_API_KEYS", Some("")), ("RAG_OPENAI_API_KEY", None), ("RAG_OPENAI_API_KEY", Some("sk-other"))]
    {
        let world = World::new(Profile::Late2026).await;
        let agent = patient(&world).await;
        let resource = world.sold(&agent, "llm", &["kestrel-8b"]).await;
        let before = world.secrets(resource);
        let name = world.kube.secrets().into_iter().find(|secret| secret.namespace == CHAT_NAMESPACE).unwrap().name;
        world.kube.edit_as("kubectl-edit", CHAT_NAMESPACE, &name, |edit| match value {
            Some(value) => drop(edit.data.insert(variable.to_owned(), value.to_owned())),
            None => drop(edit.data.remove(variable)),
        });
        world.faults.reset_calls();
        world.slow_beat(&agent).await;
        if value.is_some() {
            // Somebody else keeps that variable now; taking it from them is not ours to decide, naming them is.
            let message = condition(&agent, "taken-secret").expect("a condition");
            assert!(message.contains("kubectl-edit") && message.contains(variable), "{message}");
            world.kube.edit_as("kubectl-edit", CHAT_NAMESPACE, &name, |edit| drop(edit.data.remove(variable)));
            world.advance(30 * MINUTE);
            world.slow_beat(&agent).await;
            world.slow_beat(&agent).await;
        }
        assert_eq!(world.secrets(resource), before, "{variable} {value:?}: {:?}", agent.conditions.all());
        assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
        assert_eq!(world.writes(Some(Peer::LiteLlm)), none());
        world.check();
    }
}

#[tokio::test]
async fn c27_an_emptied_file_has_lost_our_mark_and_is_named() {
    let world = World::with_store(Profile::Late2026, Store::Directory).await;
    let agent = patient(&world).await;
    let resource = world.sold(&agent, "llm", &["kestrel-8b"]).await;
    let path = fs::read_dir(world.secrets_folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_str().unwrap().contains("llm-key-"))
        .unwrap();
    fs::write(&path, "").unwrap();
    world.slow_beat(&agent).await;
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
    let message = condition(&agent, "foreign-secret").expect("a condition");
    assert!(message.contains(path.file_stem().unwrap().to_str().unwrap()), "{message}");
    fs::remove_file(&path).unwrap();
    world.advance(30 * MINUTE);
    world.slow_beat(&agent).await;
    world.slow_beat(&agent).await;
    assert_eq!(world.secrets(resource).len(), 2);
    assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
    world.check();
}

#[tokio::test]
async fn c27_a_secret_that_is_not_ours_is_never_adopted() {
    let world = World::new(Profile::Late2026).await;
    let agent = patient(&world).await;
    let resource = world.sold(&agent, "llm", &["kestrel-8b"]).await;
    let ours = world.kube.secrets().into_iter().find(|s| s.namespace == KEY_NAMESPACE).unwrap();
    // Somebody takes our marks off and puts a key of their own in.
    world.kube.edit_as("other-operator", KEY_NAMESPACE, &ours.name, |edit| {
        edit.labels.clear();
        edit.annotations.clear();
        edit.data = [("OPENAI_API_KEY".to_owned(), "sk-chosen-by-an-intruder-0123456789".to_owned())].into();
    });
    let theirs = world.kube.secret(KEY_NAMESPACE, &ours.name).unwrap();
    for _ in 0..5 {
        world.slow_beat(&agent).await;
        world.advance(5 * MINUTE);
    }
    assert_eq!(world.kube.secret(KEY_NAMESPACE, &ours.name).unwrap(), theirs);
    let message = condition(&agent, "foreign-secret").expect("a condition");
    assert!(message.contains(&ours.name), "{message}");
    let stolen = hash("sk-chosen-by-an-intruder-0123456789");
    assert!(world.gateway.all_live_keys().iter().all(|key| key.hash != stolen));
    world.kube.delete(KEY_NAMESPACE, &ours.name);
    world.advance(30 * MINUTE);
    world.slow_beat(&agent).await;
    world.slow_beat(&agent).await;
    world.check();
    assert!(world.gateway.team(&id(resource)).is_some());
    assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
}

// ---- C29: our own errors carry the key ------------------------------------------------------------------------------

/// A log that a test can read.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn c29_a_peer_that_echoes_a_key_leaks_it_nowhere() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let metrics = llm_access_agent::telemetry::metrics().unwrap();
    let world = World::new(Profile::Late2026).await;
    let agent = patient(&world).await;
    let echo = |status| {
        Fault::status(
            status,
            r#"{"error": {"message": "Invalid key sk-MARKER-1 given, Key=sk-MARKER-1.", "type": "bad_request_error", "param": "sk-MARKER-1", "code": "400"}}"#,
        )
    };
    let mut secrets = vec!["sk-MARKER".to_owned(), world.waldur.agent_token(), world.gateway.master_key()];
    let mut said = String::new();
    let mut note = |agent: &Agent| {
        said.push_str(&llm_access_agent::http::status(agent).to_string());
        said.push_str(&format!("{:?} {:?}", agent.conditions.all(), agent.schedule.waiting()));
    };
    // A refusal with the key in it, until the order is given up.
    for (n, (path, fault)) in [
        ("/key/generate", echo(400)),
        ("/key/generate", echo(422)),
        ("/team/new", echo(500)),
        ("/v1/models", echo(401)),
        ("/team/info", echo(403)),
        ("/key/", Fault::Refuse),
        ("/team/", Fault::Truncate),
    ]
    .into_iter()
    .enumerate()
    {
        let rule = world.faults.add(Rule::new(fault).peer(Peer::LiteLlm).path(path));
        let (_, resource) = world.order(&format!("llm-{n}"), &["kestrel-8b"]);
        for _ in 0..4 {
            world.beat(&agent).await;
            world.slow_beat(&agent).await;
            note(&agent);
            world.advance(5 * MINUTE);
        }
        secrets.extend(
            world
                .secrets(resource)
                .into_values()
                .flat_map(|data| data.into_iter().filter(|(name, _)| name.starts_with("OPENAI_API_KEY")).map(|(_, key)| key)),
        );
        world.faults.remove(rule);
        for _ in 0..8 {
            world.advance(15 * MINUTE);
            world.beat(&agent).await;
            world.slow_beat(&agent).await;
        }
        note(&agent);
    }
    world.check();
    assert!(secrets.len() > 8, "{}", secrets.len());
    for order in world.waldur.orders() {
        said.push_str(&format!("{order:?}"));
    }
    let resources: Vec<_> =
        world.waldur.resources().into_iter().map(|resource| (resource.report, resource.backend_metadata, resource.error_message)).collect();
    said.push_str(&format!("{resources:?} {agent:?}", agent = agent.config));
    said.push_str(&metrics.render());
    let log = log.text();
    assert!(log.contains("TRACE") && log.contains("/key/generate"), "the log was caught");
    assert!(said.contains("llm_access_actions_total"), "the metrics were caught");
    for secret in secrets {
        let shown = &secret[..secret.len().min(9)];
        for (place, text) in [("the log", &log), ("what is said", &said)] {
            if let Some(at) = text.find(&secret) {
                panic!("{shown}… leaked into {place}: …{}…", text[at.saturating_sub(300)..].chars().take(600).collect::<String>());
            }
        }
        for call in world.faults.calls() {
            assert!(!call.path.contains(&secret), "{shown}… leaked into {} {}", call.method, call.path);
        }
    }
}

// ---- C31: 2xx that is not 200 ---------------------------------------------------------------------------------------

#[tokio::test]
async fn c31_a_write_succeeds_by_the_class_of_its_status() {
    let answers =
        [("", "application/json"), ("null", "application/json"), (r#"{"status": "ok"}"#, "application/json"), ("done", "text/plain")];
    for status in [200, 201, 202, 204] {
        for (body, kind) in answers {
            let world = World::new(Profile::Late2026).await;
            let agent = patient(&world).await;
            for peer in [Peer::Waldur, Peer::LiteLlm] {
                let fault =
                    Fault::Status { status, headers: vec![("content-type".into(), kind.into())], body: body.into(), after_effect: true };
                world.faults.add(Rule::new(fault).peer(peer).method("POST"));
            }
            let (order, resource) = world.order("llm", &["kestrel-8b"]);
            world.beat(&agent).await;
            let what = format!("{status} {body:?} {kind}");
            assert_eq!(world.waldur.order_state(order), "done", "{what}: {:?}", agent.schedule.waiting());
            world.check();
            let order = world.waldur.update_limits(resource, &[("max_budget", "80")]);
            world.beat(&agent).await;
            assert_eq!(world.waldur.order_state(order), "done", "{what}: {:?}", agent.schedule.waiting());
            assert_eq!(world.gateway.team(&id(resource)).unwrap().max_budget.unwrap().to_string(), "80");
            world.waldur.terminate(resource);
            world.run_to_rest(&agent, 10).await;
            assert_eq!(world.waldur.resource(resource).state, "Terminated", "{what}");
            assert!(agent.conditions.all().is_empty(), "{what}: {:?}", agent.conditions.all());
            world.check();
        }
    }
}

#[tokio::test]
async fn c31_several_results_in_one_and_redirects_are_no_success() {
    for status in [207, 301, 302, 307] {
        for (peer, path) in [
            (Peer::LiteLlm, "/team/new"),
            (Peer::LiteLlm, "/key/generate"),
            (Peer::Waldur, "set_state_done"),
            (Peer::Waldur, "set_backend_id"),
        ] {
            let world = World::new(Profile::Late2026).await;
            let agent = patient(&world).await;
            let fault =
                Fault::Replace { status, headers: vec![("location".into(), "https://elsewhere.example.org/".into())], body: "{}".into() };
            let rule = world.faults.add(Rule::new(fault).peer(peer).path(path));
            let (order, _) = world.order("llm", &["kestrel-8b"]);
            for _ in 0..3 {
                world.beat(&agent).await;
                assert_eq!(world.waldur.order_state(order), "executing", "{status} {path}");
                world.advance(MINUTE);
            }
            world.faults.remove(rule);
            world.run_to_rest(&agent, 10).await;
            assert_eq!(world.waldur.order_state(order), "done", "{status} {path}");
            world.check();
        }
    }
}

// ---- C34: next page on another scheme or host -----------------------------------------------------------------------

#[tokio::test]
async fn c34_pages_are_read_at_our_own_address_whatever_the_links_say() {
    for public in ["http://backend:8000", "https://elsewhere.example.org", "http://127.0.0.1:1"] {
        let world = World::new(Profile::Late2026).await;
        let agent = patient(&world).await;
        living(&world, &agent, 10).await;
        world.waldur.set_public_url(public);
        world.waldur.set_page_cap(4);
        world.beat(&agent).await;
        let drift = agent.resource_beat().await.unwrap();
        assert_eq!((drift.compared, drift.drifted.len()), (10, 0));
        let pages = world.faults.calls().into_iter().filter(|call| call.path.contains("marketplace-provider-resources/?")).count();
        assert_eq!(pages, 3);
        assert_eq!(world.writes(None), none());
        assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
        // And orders beyond the first page are found.
        let orders = twelve_orders(&world);
        world.beat(&agent).await;
        assert_eq!(states(&world, &orders), BTreeSet::from(["done".to_owned()]));
        world.check();
    }
}

#[tokio::test]
async fn c34_a_redirected_post_is_a_plain_mistake_of_the_configuration() {
    let world = World::new(Profile::Y2024).await;
    let agent = patient(&world).await;
    let (order, _) = world.order("llm", &["kestrel-8b"]);
    let fault =
        Fault::Replace { status: 301, headers: vec![("Location".into(), "https://waldur.example.org/api/".into())], body: String::new() };
    let rule = world.faults.add(Rule::new(fault).peer(Peer::Waldur).method("POST"));
    world.beat(&agent).await;
    let message = condition(&agent, "waldur-unreachable").expect("a condition");
    assert!(message.contains("301") && message.contains("https") && message.contains("waldur.example.org"), "{message}");
    assert_eq!(world.waldur.order_state(order), "pending-provider");
    world.faults.remove(rule);
    world.run_to_rest(&agent, 10).await;
    assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
    world.check();
}

// ---- C46: somebody else's team under our id or name -----------------------------------------------------------------

#[tokio::test]
async fn c46_a_foreign_team_under_our_id_is_left_alone_until_an_operator_adopts_it() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = patient(&world).await;
        let (order, resource) = world.order("llm", &["kestrel-8b"]);
        let fields = json!({"team_alias": "llm", "models": ["heron-70b"], "max_budget": 7, "metadata": {"cost_centre": "77", "logging": [], "by": "hand"}});
        world.gateway.add_foreign_team(&id(resource), &fields);
        let theirs = world.gateway.team(&id(resource)).unwrap();
        ten_passes(&world, &agent).await;
        assert_eq!(world.waldur.order_state(order), "executing");
        assert_eq!(world.gateway.team(&id(resource)).unwrap(), theirs);
        assert_eq!(world.writes(Some(Peer::LiteLlm)), none());
        assert_eq!(world.writes(Some(Peer::Kube)), none());
        let message = condition(&agent, "foreign-team").expect("a condition");
        assert!(
            message.contains(&format!("team {} exists and is not managed by this agent", id(resource))) && message.contains("adopt"),
            "{message}"
        );

        let word = world.watch.by_word();
        llm_access_agent::cli::commands::adopt(&agent, resource).await.unwrap();
        drop(word);
        world.advance(30 * MINUTE);
        world.run_to_rest(&agent, 3).await;
        assert_eq!(world.waldur.order_state(order), "done");
        let team = world.gateway.team(&id(resource)).unwrap();
        assert_eq!((&team.metadata["cost_centre"], &team.metadata["by"]), (&json!("77"), &json!("hand")));
        assert_eq!(team.max_budget.unwrap().to_string(), "50");
        assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
        world.check();
    }
}

#[tokio::test]
async fn c46_a_foreign_team_outlives_the_order_that_met_it() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = patient(&world).await;
        let (order, resource) = world.order("llm", &["kestrel-8b"]);
        world.gateway.add_foreign_team(
            &id(resource),
            &json!({"team_alias": "llm", "metadata": {"managed_by": "llm-access-agent", "owner": "daedalus", "resource": id(resource)}}),
        );
        world.gateway.add_foreign_key(&id(resource), "theirs");
        let theirs = world.gateway.team(&id(resource)).unwrap();
        world.beat(&agent).await;
        let message = condition(&agent, "foreign-team").expect("a condition");
        assert!(message.contains("daedalus"), "{message}");
        world.waldur.cancel(order);
        ten_passes(&world, &agent).await;
        assert_eq!(world.gateway.team(&id(resource)).unwrap(), theirs);
        assert_eq!(world.gateway.live_keys(&id(resource)).len(), 1);
        assert_eq!(world.writes(Some(Peer::LiteLlm)), none());
        // Where the resource is over too, there is nothing left to report.
        if world.waldur.resource(resource).state == "Terminated" {
            assert!(agent.conditions.all().is_empty(), "{profile:?}: {:?}", agent.conditions.all());
        } else {
            assert_eq!(profile, Profile::Y2024);
        }
    }
}

#[tokio::test]
async fn no_right_is_missed_for_a_resource_that_another_agent_took_over() {
    let world = World::new(Profile::V8_0).await;
    let agent = patient(&world).await;
    let resource = world.sold(&agent, "llm", &["kestrel-8b"]).await;
    world.waldur.pause(resource, true);
    let denied = Fault::status(403, r#"{"detail":"You do not have permission to perform this action."}"#);
    world
        .faults
        .add(Rule::new(denied).peer(Peer::Waldur).method("GET").path(&format!("/marketplace-provider-resources/{}/", id(resource))));
    ten_passes(&world, &agent).await;
    assert!(condition(&agent, "waldur-credential").is_some(), "{:?}", agent.conditions.all());
    world.faults.clear();
    world.waldur.put_backend_id(resource, "slurm-account-17");
    ten_passes(&world, &agent).await;
    assert!(condition(&agent, "foreign-backend-id").is_some());
    assert_eq!(condition(&agent, "waldur-credential"), None);
}

#[tokio::test]
async fn a_key_that_was_registered_for_a_team_that_is_not_there_goes_with_its_order() {
    for profile in PROFILES {
        for seen_at_once in [true, false] {
            let world = World::new(profile).await;
            let agent = patient(&world).await;
            let (order, resource) = world.order("llm", &["kestrel-8b"]);
            // Something on the way says that the team is made, and it is not.
            let said = Fault::Replace { status: 200, headers: Vec::new(), body: "[]".to_owned() };
            world.faults.add(Rule::new(said).peer(Peer::LiteLlm).path("/team/new").once());
            world.beat(&agent).await;
            assert!(world.gateway.team(&id(resource)).is_none());
            assert_eq!(world.gateway.live_keys(&id(resource)).len(), 1);
            world.waldur.cancel(order);
            if seen_at_once {
                ten_passes(&world, &agent).await;
            } else {
                // Whoever saw the order end is gone.
                drop(agent);
                world.waldur.put_resource_state(resource, "Terminated");
                ten_passes(&world, &patient(&world).await).await;
            }
            if world.waldur.resource(resource).state == "Terminated" {
                assert!(world.gateway.live_keys(&id(resource)).is_empty(), "{profile:?} {seen_at_once}");
            } else {
                assert_eq!((profile, seen_at_once), (Profile::Y2024, true));
            }
        }
    }
}

#[tokio::test]
async fn a_resource_that_is_restored_before_its_end_was_noticed_gets_a_key_that_waldur_can_show() {
    for custom_keys in [true, false] {
        let world = World::new(Profile::Late2026).await;
        world.gateway.forbid_custom_keys(!custom_keys);
        let agent = patient(&world).await;
        let (order, resource) = world.order("llm", &["kestrel-8b"]);
        let failing = Rule::new(Fault::status(503, "")).peer(Peer::Waldur).path("set_state_done");
        let failing = world.faults.add(failing);
        world.beat(&agent).await;
        let shown = |state: &str| world.waldur.api_keys(resource).iter().filter(|key| key.state == state).count();
        assert_eq!((shown("OK"), shown("Deleted")), (1, 0));
        // Waldur ends the key with the resource, and the agent sees neither this nor what comes next.
        world.waldur.cancel(order);
        assert_eq!((shown("OK"), shown("Deleted")), (0, 1));
        let restored = world.waldur.restore(resource);
        world.faults.remove(failing);
        world.advance(30 * MINUTE);
        world.run_to_rest(&agent, 3).await;
        assert_eq!(world.waldur.order_state(restored), "done");
        assert_eq!((shown("OK"), shown("Deleted")), (1, 1), "custom keys: {custom_keys}");
        assert_eq!(world.gateway.live_keys(&id(resource)).len(), 2);
        world.check();
    }
}

#[tokio::test]
async fn c46_a_team_of_the_same_name_is_no_obstacle_and_a_foreign_backend_id_is() {
    let world = World::new(Profile::Y2024).await;
    let agent = patient(&world).await;
    world.gateway.add_foreign_team("other", &json!({"team_alias": "llm", "metadata": {}}));
    let resource = world.sold(&agent, "llm", &["kestrel-8b"]).await;
    assert!(world.gateway.team("other").is_some());
    // Another agent takes the resource over.
    world.waldur.put_backend_id(resource, "slurm-account-17");
    world.faults.reset_calls();
    ten_passes(&world, &agent).await;
    assert_eq!(world.writes(None), none());
    assert!(condition(&agent, "foreign-backend-id").unwrap().contains("slurm-account-17"));
}

#[tokio::test]
async fn c46_an_existence_check_that_fails_neither_creates_nor_adopts() {
    for (status, body) in [
        (503, r#"{"error": {"message": "DB not connected", "type": "no_db_connection", "param": "None", "code": "503"}}"#),
        (404, r#"{"detail": {"error": "Team not found, passed team id: x."}}"#),
        (200, r#"{"teams": [], "total": 1, "page": 1, "page_size": 10, "total_pages": 1}"#),
    ] {
        let world = World::new(Profile::Late2026).await;
        let agent = patient(&world).await;
        let (order, resource) = world.order("llm", &["kestrel-8b"]);
        world.gateway.add_foreign_team(&id(resource), &json!({"team_alias": "llm", "metadata": {"by": "hand"}}));
        let theirs = world.gateway.team(&id(resource)).unwrap();
        let rule = world
            .faults
            .add(Rule::new(Fault::Replace { status, headers: Vec::new(), body: body.into() }).peer(Peer::LiteLlm).path("/v2/team/list"));
        for _ in 0..5 {
            world.beat(&agent).await;
            world.slow_beat(&agent).await;
            world.advance(MINUTE);
        }
        assert_eq!(world.waldur.order_state(order), "executing", "{status}");
        assert_eq!(world.writes(Some(Peer::LiteLlm)), none(), "{status}");
        world.faults.remove(rule);
        world.advance(30 * MINUTE);
        world.beat(&agent).await;
        assert_eq!(world.gateway.team(&id(resource)).unwrap(), theirs);
        assert!(agent.conditions.holds("foreign-team"), "{status}: {:?}", agent.conditions.all());
    }
}

// ---- C49: health green while the loop hangs -------------------------------------------------------------------------

#[tokio::test]
async fn c49_a_call_that_hangs_ends_by_its_deadline_and_delays_nobody_else() {
    for (peer, path) in [(Peer::LiteLlm, "/key/generate"), (Peer::Waldur, "set_backend_id")] {
        let world = World::new(Profile::Late2026).await;
        let agent = world.agent().await;
        let rule = world.faults.add(Rule::new(Fault::Hang { after_effect: false }).peer(peer).path(path).once());
        let (stuck, _) = world.order("stuck", &["kestrel-8b"]);
        world.advance(Duration::from_secs(1));
        let (fine, _) = world.order("fine", &["kestrel-8b"]);
        world.beat(&agent).await;
        let done = [stuck, fine].map(|order| world.waldur.order_state(order));
        assert!(done.contains(&"done".to_owned()) && done.contains(&"executing".to_owned()), "{done:?}");
        world.faults.remove(rule);
        world.run_to_rest(&agent, 5).await;
        world.check();
    }
}

/// Lets everything that can run do so.
async fn breathe(until: impl Fn() -> bool) {
    for _ in 0..2000 {
        if until() {
            return;
        }
        tokio::task::yield_now().await;
        #[allow(clippy::disallowed_methods)]
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it never came");
}

#[tokio::test]
async fn c49_each_loop_vouches_for_itself_alone() {
    let world = World::new(Profile::Late2026).await;
    let text = world.config_text("").replace("timeout: 400ms", "timeout: 10m");
    let agent = Agent::new(world.parse(&text), world.clock.clone()).await.unwrap();
    // The list of teams is never answered: no bytes, and the connection stays open.
    world.faults.add(Rule::new(Fault::Hang { after_effect: false }).peer(Peer::LiteLlm).path("/v2/team/list"));
    let running = tokio::spawn({
        let agent = agent.clone();
        async move { agent.run(&[Loop::Orders, Loop::Resources], std::future::pending(), Duration::ZERO).await }
    });
    let orders_beat = || agent.progress.last().into_iter().any(|(which, last)| which == "orders" && last == world.clock.now());
    for minute in 0..12 {
        breathe(orders_beat).await;
        if minute < 10 {
            assert_eq!(agent.progress.stuck(), [], "minute {minute}");
        }
        world.advance(MINUTE);
    }
    breathe(orders_beat).await;
    let stuck: Vec<_> = agent.progress.stuck().into_iter().map(|(which, _)| which).collect();
    assert_eq!(stuck, ["resources"]);
    running.abort();
}
