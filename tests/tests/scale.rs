//! Many at once, one that is poisoned, and what each thing may cost in calls.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_fixtures::faults::{Call, Fault, Peer, Rule};
use llm_access_fixtures::litellm;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::{PROFILES, Store, World};
use rust_decimal::Decimal;
use serde_json::json;
use uuid::Uuid;

/// The calls, one a line.
fn listed(calls: &[Call]) -> String {
    calls
        .iter()
        .map(|call| format!("{:>3} {:?} {} {}\n", call.n, call.peer, call.method, call.path.split("field=").next().unwrap_or_default()))
        .collect()
}

fn to(peer: Peer, calls: &[Call]) -> usize {
    calls.iter().filter(|call| call.peer == peer).count()
}

#[tokio::test]
async fn a_create_costs_what_it_has_to() {
    for profile in PROFILES {
        for store in [Store::Kube, Store::Directory] {
            let world = World::with_store(profile, store).await;
            let agent = world.patient().await;
            // What the server can do is learnt with the first one.
            world.sold(&agent, "first", &["kestrel-8b"]).await;
            world.faults.reset_calls();
            let (order, _) = world.order("second", &["kestrel-8b"]);
            world.beat(&agent).await;
            assert_eq!(world.waldur.order_state(order), "done");
            let calls = world.faults.calls();
            let counted = [Peer::Waldur, Peer::LiteLlm, Peer::Kube].map(|peer| to(peer, &calls));
            // With the list of open orders, which is one call for all of them. Secrets: two stored, two marked as ready, and
            // two namespaces read back twice.
            let waldur = match profile {
                Profile::Y2024 => 9,
                // Does not begin at once: the order is read after its approval.
                Profile::V8_0 => 10,
                // Keys: listed, reported, listed again.
                Profile::Late2026 => 13,
            };
            let secrets = if store == Store::Kube { 8 } else { 0 };
            assert_eq!(counted, [waldur, 7, secrets], "{profile:?} {store:?} [Waldur, LiteLLM, Secrets]:\n{}", listed(&calls));
            let (most, most_without_secrets) = if profile == Profile::Late2026 { (28, 21) } else { (25, 18) };
            assert!(calls.len() <= most && calls.len() - secrets <= most_without_secrets);
            assert!(profile != Profile::Y2024 || calls.len() <= 24);
            world.check();
        }
    }
}

#[tokio::test]
async fn an_idle_order_beat_is_one_call_for_each_offering_and_an_idle_pass_is_pages() {
    for profile in PROFILES {
        for store in [Store::Kube, Store::Directory] {
            let world = World::with_store(profile, store).await;
            let agent = world.patient().await;
            for n in 0..20 {
                world.order(&format!("llm-{n}"), &["kestrel-8b"]);
            }
            world.run_to_rest(&agent, 5).await;
            world.slow_beat(&agent).await;
            world.faults.reset_calls();
            world.beat(&agent).await;
            assert_eq!(world.faults.count(), 1, "{}", listed(&world.faults.calls()));
            world.faults.reset_calls();
            let drift = agent.resource_beat().await.unwrap();
            assert_eq!((drift.compared, drift.drifted.len()), (20, 0));
            assert_pages(&world, profile, 20, None);
        }
    }
}

/// What reading everything costs with `n` resources of two keys each: pages, however many calls one by one would be. Of the
/// keys that Waldur shows, there may be `shown` to list; a pass that follows a quiet one does not list them again.
fn assert_pages(world: &World, profile: Profile, n: usize, shown: Option<usize>) {
    let calls = world.faults.calls();
    // Waldur gives 100 rows a page at most since late 2026, 300 before; the gateway 100; Kubernetes 500 in each of two
    // namespaces. Beside the resources there is one call for the offering, and one page each of erred orders and, where the
    // server has them, of keys.
    let keys = shown.map_or(0, |shown| shown.div_ceil(100).max(1));
    let (rows, lists) = if profile == Profile::Late2026 { (100, 2 + keys) } else { (300, 2) };
    let waldur = n.div_ceil(rows) + lists;
    let gateway = n.div_ceil(100) + (2 * n).div_ceil(100);
    let secrets = if world.store == Store::Kube { 2 * n.div_ceil(500) } else { 0 };
    let counted = [Peer::Waldur, Peer::LiteLlm, Peer::Kube].map(|peer| to(peer, &calls));
    assert_eq!(counted, [waldur, gateway, secrets], "{profile:?} {:?} [Waldur, LiteLLM, Secrets]:\n{}", world.store, listed(&calls));
    assert!(calls.iter().all(|call| call.method == "GET"), "{}", listed(&calls));
}

/// Calls for the list of all keys at Waldur that a pass makes.
async fn lists_of_keys(world: &World, agent: &Agent) -> usize {
    world.faults.reset_calls();
    world.slow_beat(agent).await;
    world.faults.calls().iter().filter(|call| call.method == "GET" && call.path.contains("resource-api-keys/?offering")).count()
}

#[tokio::test]
async fn the_keys_at_waldur_are_listed_once_an_hour_and_after_anything_changed() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient().await;
    let resource = world.sold(&agent, "first", &["kestrel-8b"]).await;
    assert_eq!((lists_of_keys(&world, &agent).await, lists_of_keys(&world, &agent).await), (1, 0), "a quiet pass");
    world.sold(&agent, "second", &["kestrel-8b"]).await;
    assert_eq!((lists_of_keys(&world, &agent).await, lists_of_keys(&world, &agent).await), (1, 0), "a key was reported");
    world.gateway.edit_team(&resource.simple().to_string(), &json!({"models": ["heron-70b"]}));
    lists_of_keys(&world, &agent).await;
    assert_eq!((lists_of_keys(&world, &agent).await, lists_of_keys(&world, &agent).await), (1, 0), "something differed");
    world.advance(Duration::from_secs(3599));
    assert_eq!(lists_of_keys(&world, &agent).await, 0);
    world.advance(Duration::from_secs(1));
    assert_eq!(lists_of_keys(&world, &agent).await, 1);
    world.check();
}

/// `n` more resources with team, keys and Secrets like those of `model`, put there without the agent.
fn populate(world: &World, model: Uuid, n: usize) -> Vec<Uuid> {
    let like = model.simple().to_string();
    let mut resources = Vec::new();
    for i in 0..n {
        let resource =
            world.waldur.add_resource(world.offering, &world.project, &format!("llm-{i}"), &["kestrel-8b"], &[("max_budget", "50")]);
        let id = resource.simple().to_string();
        let mark = json!({"managed_by": "llm-access-agent", "owner": world.owner, "offering": world.offering.simple().to_string(), "resource": id});
        world.gateway.add_foreign_team(&id, &json!({"models": ["kestrel-8b"], "metadata": mark}));
        world.gateway.add_foreign_key(&id, &format!("{id}-1"));
        world.gateway.add_foreign_key(&id, &format!("{id}-chat-1"));
        resources.push(resource);
    }
    for secret in world.kube.secrets().into_iter().filter(|secret| secret.labels["llm-access.io/resource"] == like) {
        for resource in &resources {
            let id = resource.simple().to_string();
            world.kube.edit_as("llm-access-agent", &secret.namespace, &format!("{}-{id}", &secret.name[..8]), |edit| {
                let renamed = |(name, value): (&String, &String)| (name.clone(), value.replace(&like, &id));
                edit.labels = secret.labels.iter().map(renamed).collect();
                edit.annotations = secret.annotations.iter().map(renamed).collect();
                edit.data = secret.data.clone();
            });
        }
    }
    resources
}

async fn read_a_thousand(profile: Profile) {
    let world = World::new(profile).await;
    let agent = world.patient().await;
    let model = world.sold(&agent, "model", &["kestrel-8b"]).await;
    let resources = populate(&world, model, 999);
    world.faults.reset_calls();
    let seen = agent.read_world().await.unwrap();
    assert_eq!((seen.resources.len(), seen.teams.len(), seen.secrets.len()), (1000, 1000, 1000));
    assert!(resources.iter().all(|id| seen.keys[&id.simple().to_string()].len() == 2 && seen.secrets[id].stored.len() == 2));
    assert_pages(&world, profile, 1000, Some(1));
}

#[tokio::test]
async fn reading_a_thousand_resources_costs_pages() {
    read_a_thousand(Profile::Y2024).await;
}

#[tokio::test]
async fn reading_a_thousand_resources_of_a_late_2026_server_costs_pages() {
    read_a_thousand(Profile::Late2026).await;
}

#[tokio::test]
async fn a_thousand_waiting_orders_are_answered_by_no_more_than_sixteen_at_a_time() {
    let world = World::with_store(Profile::Late2026, Store::Directory).await;
    let agent = world.patient_with(&world.config_text("concurrency: {orders: 16}\n")).await;
    world.waldur.set_forms(world.offering, json!({}), json!({}));
    let orders: Vec<Uuid> = (0..1000).map(|n| world.order(&format!("llm-{n}"), &["no-such-model"]).0).collect();
    world.faults.set_latency(Duration::from_millis(1));
    world.beat(&agent).await;
    for order in orders {
        assert_eq!(world.waldur.order_state(order), "rejected");
    }
    // A worker makes one call at a time: one worker, one call in flight.
    let most = world.faults.in_flight_max();
    assert!((12..=16).contains(&most), "{most} calls were in flight");
    world.check();
}

#[tokio::test]
async fn creates_keep_to_the_bound_too() {
    for store in [Store::Directory, Store::Kube] {
        let world = World::with_store(Profile::Y2024, store).await;
        let agent = world.patient_with(&world.config_text("concurrency: {orders: 16}\n")).await;
        let orders: Vec<Uuid> = (0..32).map(|n| world.order(&format!("llm-{n}"), &["kestrel-8b"]).0).collect();
        world.faults.set_latency(Duration::from_millis(1));
        world.beat(&agent).await;
        for order in orders {
            assert_eq!(world.waldur.order_state(order), "done");
        }
        // Two namespaces are read at once, so a worker may have two calls in flight at the Kubernetes API, and one elsewhere.
        let bound = if store == Store::Kube { 32 } else { 16 };
        let most = world.faults.in_flight_max();
        assert!((12..=bound).contains(&most), "{most} calls were in flight");
        world.check();
    }
}

/// Beats without waiting for the work they begin; far more of them than fit into the time that one held call may take.
async fn beat_until(agent: &Agent, done: impl Fn() -> bool) {
    for _ in 0..5000 {
        if done() {
            return;
        }
        agent.order_beat().await;
        tokio::task::yield_now().await;
    }
    panic!("not done after 5000 beats: {:?}", agent.schedule.waiting());
}

#[tokio::test]
async fn a_poisoned_order_delays_nobody() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient().await;
    let (refused, refused_resource) = world.order("refused", &["kestrel-8b"]);
    let (hanging, hanging_resource) = world.order("hanging", &["kestrel-8b"]);
    let others: Vec<Uuid> = (0..20).map(|n| world.order(&format!("llm-{n}"), &["kestrel-8b"]).0).collect();
    let id = |resource: Uuid| resource.simple().to_string();
    let always = Fault::status(400, r#"{"error":{"message":"no","type":"bad_request_error","param":null,"code":"400"}}"#);
    let poison = world.faults.add(Rule::new(always).path("/team/new").body(&id(refused_resource)));
    let hold = world.faults.add(Rule::new(Fault::Hold).path("/team/new").body(&id(hanging_resource)));
    let done = || others.iter().all(|order| world.waldur.order_state(*order) == "done");
    let meanwhile = async {
        world.faults.held().await;
        beat_until(&agent, done).await;
    };
    tokio::select! {
        () = meanwhile => {}
        () = async { agent.order_beat().await; agent.settle().await } => panic!("the held call ended before the others"),
    }
    assert_eq!(world.waldur.order_state(hanging), "executing");
    assert_eq!(world.waldur.order_state(refused), "executing");
    // New orders do not wait for it either.
    let (late, _) = world.order("late", &["kestrel-8b"]);
    beat_until(&agent, || world.waldur.order_state(late) == "done").await;
    assert_eq!(world.waldur.order_state(hanging), "executing");
    // All those beats saw that somebody is at work on it.
    let at_work = |call: &&Call| call.path.contains("/team/new") && call.body.contains(&id(hanging_resource));
    assert_eq!(world.faults.calls().iter().filter(at_work).count(), 1);

    world.faults.remove(hold);
    world.faults.release();
    agent.settle().await;
    assert_eq!(world.waldur.order_state(hanging), "done");
    for _ in 0..3 {
        world.beat(&agent).await;
        world.advance(Duration::from_secs(3600));
    }
    assert_eq!(world.waldur.order_state(refused), "erred");
    assert!(world.gateway.team(&id(refused_resource)).is_none());
    world.faults.remove(poison);
    world.slow_beat(&agent).await;
    world.check();
}

#[tokio::test]
async fn a_call_that_never_ends_is_given_up_and_tried_again() {
    let world = World::new(Profile::Y2024).await;
    // With the short time limit of every other test.
    let agent = world.agent().await;
    let (hanging, resource) = world.order("hanging", &["kestrel-8b"]);
    let others: Vec<Uuid> = (0..5).map(|n| world.order(&format!("llm-{n}"), &["kestrel-8b"]).0).collect();
    let rule = world.faults.add(Rule::new(Fault::Hang { after_effect: true }).path("/team/new").body(&resource.simple().to_string()));
    world.beat(&agent).await;
    assert!(others.iter().all(|order| world.waldur.order_state(*order) == "done"));
    assert_eq!(world.waldur.order_state(hanging), "executing");
    world.faults.remove(rule);
    world.advance(Duration::from_secs(600));
    world.beat(&agent).await;
    assert_eq!(world.waldur.order_state(hanging), "done");
    world.check();
}

#[tokio::test]
async fn totals_of_more_teams_than_one_answer_holds_are_read_in_parts() {
    let world = World::new(Profile::Late2026).await;
    world.set_time("2026-11-30T12:00:00Z");
    let agent = world.patient().await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    let used = |team: &str, day: u32, tokens: u64| {
        let usage = litellm::Usage { prompt_tokens: tokens, completion_tokens: 0, cached_tokens: 0, spend: Decimal::ZERO };
        let at = format!("2026-11-{day:02}T10:00:00Z").parse().unwrap();
        world.gateway.add_usage(Some(team), &format!("key-{team}"), "kestrel-8b", at, usage);
    };
    for day in 1..=29 {
        used(&resource.simple().to_string(), day, 1000);
        for n in 0..360 {
            used(&format!("stranger-{n}"), day, 1);
        }
    }
    world.faults.reset_calls();
    let report = agent.usage_beat().await.unwrap();
    assert_eq!((report.sent(), report.withheld.len()), (1, 0), "{:?} {:?}", report.lines, agent.conditions.all());
    let calls = world.faults.calls();
    let totals: Vec<&str> = calls.iter().map(|call| call.path.as_str()).filter(|path| path.contains("aggregated")).collect();
    // Today before the rows, and the month after them.
    assert_eq!(totals.len(), 3, "{totals:?}");
    assert_eq!(world.waldur.usages(resource, "2026-11")["input_tokens"].to_string(), "29.00");
    world.check();
}
