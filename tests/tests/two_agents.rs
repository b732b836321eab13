//! Two agents on one world: side by side without a Lease, and as two environments that share a gateway and a cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::{PROFILES, Store, World};
use serde_json::json;
use uuid::Uuid;

/// What the customer wants while two agents are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Create,
    Update,
    Terminate,
}

/// A world in which `wish` was just ordered, with what it was ordered for.
async fn ordered(profile: Profile, store: Store, custom_keys: bool, wish: Wish) -> (World, Uuid, Uuid) {
    let world = World::with_store(profile, store).await;
    world.gateway.forbid_custom_keys(!custom_keys);
    let (order, resource) = if wish == Wish::Create {
        world.order("seabird-llm", &["kestrel-8b"])
    } else {
        let resource = world.sold(&world.patient().await, "seabird-llm", &["kestrel-8b"]).await;
        world.gateway.chat(&world.key(resource, "project"), "kestrel-8b", "P=1000 C=2000").unwrap();
        world.advance(Duration::from_secs(60));
        let order = match wish {
            Wish::Terminate => world.waldur.terminate(resource),
            _ => world.waldur.update_limits(resource, &[("max_budget", "80")]),
        };
        (order, resource)
    };
    world.faults.reset_calls();
    (world, order, resource)
}

/// The agent's own word for what came of it, where the checker does not look.
fn assert_came_true(world: &World, order: Uuid, resource: Uuid, wish: Wish, case: &str) {
    assert_eq!(world.waldur.order_state(order), "done", "{case}");
    let team = world.gateway.team(&resource.simple().to_string());
    match wish {
        Wish::Create | Wish::Update => {
            let budget = if wish == Wish::Create { "50" } else { "80" };
            assert_eq!(team.unwrap().max_budget.unwrap().to_string(), budget, "{case}");
            assert_eq!(world.gateway.all_live_keys().len(), 2, "{case}");
            if world.store == Store::Kube {
                assert_eq!(world.kube.secrets().len(), 2, "{case}");
            }
        }
        Wish::Terminate => {
            assert!(team.is_none() && world.gateway.all_live_keys().is_empty(), "{case}");
            let usages = world.waldur.usages(resource, "2026-11");
            assert_eq!((usages["input_tokens"].to_string(), usages["output_tokens"].to_string()), ("1.00".into(), "2.00".into()), "{case}");
        }
    }
}

/// One agent stands still before a write while another does the whole work; then it goes on. For every write there is.
async fn hold_before_every_write(profile: Profile, store: Store, custom_keys: bool, wish: Wish) {
    let (world, ..) = ordered(profile, store, custom_keys, wish).await;
    world.run_to_rest(&world.patient().await, 9).await;
    let writes: Vec<(usize, String)> = world
        .faults
        .calls()
        .into_iter()
        .filter(|call| call.method != "GET")
        .map(|call| (call.n, format!("{} {}", call.method, call.path)))
        .collect();
    assert!(writes.len() > 2, "{writes:?}");
    for (n, write) in writes {
        let case = format!("{profile:?} {store:?} custom_keys={custom_keys} {wish:?}: held before call {n}, {write}");
        let (world, order, resource) = ordered(profile, store, custom_keys, wish).await;
        let (slow, quick) = (world.patient().await, world.patient().await);
        world.faults.at_call(n, Fault::Hold);
        let mut held = false;
        for _ in 0..9 {
            held = tokio::select! {
                () = world.beat(&slow) => false,
                () = world.faults.held() => true,
            };
            if held {
                break;
            }
            world.advance(Duration::from_secs(60));
        }
        assert!(held, "{case}: never came there");
        world.run_to_rest(&quick, 9).await;
        world.faults.release();
        slow.settle().await;
        for _ in 0..3 {
            world.beat(&slow).await;
            world.slow_beat(&quick).await;
            world.slow_beat(&slow).await;
            world.advance(Duration::from_secs(60));
        }
        assert_came_true(&world, order, resource, wish, &case);
        let problems = llm_access_tests::checker::problems(&world);
        assert!(problems.is_empty(), "{case}: {problems:#?}");

        // They agree: neither has anything left to put right.
        world.faults.reset_calls();
        for agent in [&slow, &quick] {
            world.beat(agent).await;
            world.slow_beat(agent).await;
        }
        assert_eq!(world.writes(None), Vec::<String>::new(), "{case}");
    }
}

#[tokio::test]
async fn a_create_may_be_overtaken_before_any_write() {
    hold_before_every_write(Profile::Y2024, Store::Kube, true, Wish::Create).await;
    hold_before_every_write(Profile::Late2026, Store::Kube, true, Wish::Create).await;
}

#[tokio::test]
async fn a_create_into_a_directory_may_be_overtaken_before_any_write() {
    hold_before_every_write(Profile::V8_0, Store::Directory, true, Wish::Create).await;
}

#[tokio::test]
async fn a_create_at_a_gateway_that_makes_the_keys_may_be_overtaken_before_any_write() {
    hold_before_every_write(Profile::Y2024, Store::Kube, false, Wish::Create).await;
}

#[tokio::test]
async fn a_create_into_a_directory_at_such_a_gateway_may_be_overtaken_before_any_write() {
    hold_before_every_write(Profile::Late2026, Store::Directory, false, Wish::Create).await;
}

#[tokio::test]
async fn an_update_may_be_overtaken_before_any_write() {
    for profile in PROFILES {
        hold_before_every_write(profile, Store::Kube, true, Wish::Update).await;
    }
}

#[tokio::test]
async fn an_end_may_be_overtaken_before_any_write() {
    hold_before_every_write(Profile::Y2024, Store::Kube, true, Wish::Terminate).await;
    hold_before_every_write(Profile::Late2026, Store::Directory, true, Wish::Terminate).await;
}

#[tokio::test]
async fn two_agents_at_once_do_each_thing_once() {
    for (profile, custom_keys) in [(Profile::Y2024, true), (Profile::Late2026, true), (Profile::Late2026, false)] {
        let world = World::new(profile).await;
        world.gateway.forbid_custom_keys(!custom_keys);
        // Both may find an alias free before either takes it.
        world.gateway.set_race_window(Duration::from_millis(2));
        let (one, two) = (world.patient().await, world.patient().await);
        let mut resources = Vec::new();
        let mut orders = Vec::new();
        for n in 0..12 {
            let (order, resource) = world.order(&format!("llm-{n}"), &["kestrel-8b"]);
            orders.push(order);
            resources.push(resource);
            if n >= 6 {
                // Of those that are there already, one changes and one ends with each new one.
                let (changing, ending) = (resources[n - 4], resources[n - 6]);
                if world.waldur.resource(changing).state == "OK" && n % 2 == 0 {
                    orders.push(world.waldur.update_limits(changing, &[("max_budget", "70")]));
                }
                if world.waldur.resource(ending).state == "OK" {
                    orders.push(world.waldur.terminate(ending));
                }
            }
            tokio::join!(world.beat(&one), world.beat(&two));
            tokio::join!(world.slow_beat(&two), world.slow_beat(&one));
            world.advance(Duration::from_secs(60));
        }
        for _ in 0..12 {
            tokio::join!(world.beat(&two), world.beat(&one));
            tokio::join!(world.slow_beat(&one), world.slow_beat(&two));
            world.advance(Duration::from_secs(60));
        }
        for order in orders {
            let view = world.waldur.order_view(order);
            assert_eq!(view.state, "done", "{profile:?} custom_keys={custom_keys}: {view:?}; {:?}", one.conditions.all());
        }
        let living = world.waldur.resources().iter().filter(|r| r.state == "OK").count();
        assert_eq!((living, world.gateway.teams().len(), world.gateway.all_live_keys().len(), world.kube.secrets().len()), (6, 6, 12, 12));
        world.check();
    }
}

#[tokio::test]
async fn one_process_serves_two_offerings_each_by_its_own_rules() {
    for profile in PROFILES {
        let mut world = World::new(profile).await;
        let first = world.offering;
        let second = world.waldur.add_offering("LLM access for courses");
        world.waldur.set_models(second, &["kestrel-8b", "heron-70b"]);
        // The second offering gives less where nothing is ordered.
        let text = world.config_text_for(&[first, second], "");
        let (head, tail) = text.rsplit_once("rpm_limit: {default: 600}").unwrap();
        let agent = world.patient_with(&format!("{head}rpm_limit: {{default: 7}}{tail}")).await;
        let (_, a) = world.order("a", &["kestrel-8b"]);
        let (_, b) = world.waldur.order(second, &world.project, "b", &["heron-70b"], &[("max_budget", "9")]);
        world.run_to_rest(&agent, 5).await;
        let team = |id: Uuid| world.gateway.team(&id.simple().to_string()).unwrap();
        assert_eq!((team(a).rpm_limit, team(b).rpm_limit), (Some(600), Some(7)));
        assert_eq!(team(b).metadata["offering"], second.simple().to_string());
        world.faults.reset_calls();
        world.beat(&agent).await;
        assert_eq!(world.faults.count(), 2, "one call for each offering: {:?}", world.faults.calls());
        world.slow_beat(&agent).await;
        assert_eq!(world.writes(None), Vec::<String>::new());

        // An end in one leaves the other alone.
        world.waldur.terminate(b);
        world.run_to_rest(&agent, 9).await;
        world.check();
        world.offering = second;
        world.check();
        assert_eq!(world.secrets(a).len(), 2);
    }
}

/// Two offerings, each with an agent of its own, that share everything else. `other_owner` makes them two environments.
async fn neighbours(profile: Profile, store: Store, other_owner: &str) -> (World, Agent, Agent, [Uuid; 2]) {
    let mut world = World::with_store(profile, store).await;
    let here = world.patient().await;
    let mine = world.sold(&here, "mine", &["kestrel-8b"]).await;
    let (first, owner) = (world.offering, world.owner.clone());
    world.offering = world.waldur.add_offering("Elsewhere");
    world.owner = other_owner.into();
    let there = world.patient().await;
    let theirs = world.sold(&there, "theirs", &["kestrel-8b"]).await;
    world.check();
    (world.offering, world.owner) = (first, owner);
    world.check();
    (world, here, there, [mine, theirs])
}

#[tokio::test]
async fn an_agent_neither_touches_nor_reports_nor_repairs_what_another_looks_after() {
    for (profile, store) in [(Profile::Y2024, Store::Kube), (Profile::Late2026, Store::Kube), (Profile::V8_0, Store::Directory)] {
        // Two environments; and one that runs a process for each offering.
        for other_owner in ["daedalus", "icarus"] {
            let (world, here, there, [mine, theirs]) = neighbours(profile, store, other_owner).await;
            let id = theirs.simple().to_string();
            world.faults.reset_calls();
            for agent in [&here, &there] {
                world.beat(agent).await;
                world.slow_beat(agent).await;
            }
            assert_eq!(world.writes(None), Vec::<String>::new(), "{profile:?} {other_owner}");

            // What is broken over there is nobody else's to repair or to talk about.
            world.gateway.edit_team(&id, &json!({"tpm_limit": 5, "blocked": true}));
            let project_key = llm_access_tests::checker::hash(&world.key(theirs, "project"));
            assert!(world.gateway.delete_key(&project_key));
            for _ in 0..3 {
                world.slow_beat(&here).await;
                world.beat(&here).await;
                world.advance(Duration::from_secs(60));
            }
            assert_eq!(world.writes(None), Vec::<String>::new(), "{profile:?} {other_owner}");
            assert!(here.conditions.all().is_empty(), "{:?}", here.conditions.all());
            world.slow_beat(&there).await;
            assert_eq!(world.gateway.team(&id).unwrap().tpm_limit, Some(100_000));

            // Even ended, it is left to its own agent.
            world.waldur.put_resource_state(theirs, "Terminated");
            world.faults.reset_calls();
            world.slow_beat(&here).await;
            assert_eq!(world.writes(None), Vec::<String>::new(), "{profile:?} {other_owner}");
            assert!(here.conditions.all().is_empty(), "{:?}", here.conditions.all());
            world.slow_beat(&there).await;
            assert!(world.gateway.team(&id).is_none() && world.secrets(theirs).is_empty());
            assert_eq!(world.secrets(mine).len(), 2);
            world.check();
        }
    }
}

#[tokio::test]
async fn the_end_of_one_environments_resource_leaves_the_others_alone() {
    let (mut world, here, there, [mine, theirs]) = neighbours(Profile::Late2026, Store::Kube, "daedalus").await;
    world.waldur.terminate(mine);
    world.run_to_rest(&here, 9).await;
    assert!(world.secrets(mine).is_empty());
    world.check();
    world.faults.reset_calls();
    world.slow_beat(&there).await;
    assert_eq!(world.writes(None), Vec::<String>::new());
    assert_eq!(world.secrets(theirs).len(), 2);
    (world.offering, world.owner) = (there.config.offerings[0].uuid, "daedalus".into());
    world.check();
}

/// What the version after this one might add wherever it writes: entries, a variable that holds the key, a higher number.
async fn written_by_a_later_version(world: &World, agent: &Agent, resource: Uuid) {
    for secret in world.kube.secrets() {
        world.kube.edit_as("llm-access-agent", &secret.namespace, &secret.name, |edit| {
            edit.annotations.insert("llm-access.io/format".into(), "9".into());
            edit.annotations.insert("llm-access.io/speech".into(), "on".into());
            let key = edit.data.get("OPENAI_API_KEY").or_else(|| edit.data.get("OPENAI_API_KEYS")).unwrap().clone();
            edit.data.insert("SPEECH_API_KEY".into(), key);
        });
    }
    let id = resource.simple().to_string();
    let mut metadata = world.gateway.team(&id).unwrap().metadata;
    metadata["format"] = json!(9);
    metadata["speech"] = json!({"voices": 2});
    world.gateway.edit_team(&id, &json!({"metadata": metadata})).unwrap();
    let mut noted = world.waldur.resource(resource).backend_metadata;
    noted["llm_access"]["speech_key"] = json!("speech-1");
    agent.waldur.set_backend_metadata(resource, &noted).await.unwrap();
    let mut noted = world.waldur.offering_metadata(world.offering);
    noted["llm_access"]["format"] = json!(9);
    noted["llm_access"]["components"]["kestrel-8b:input"]["voice"] = json!("low");
    agent.waldur.set_offering_metadata(world.offering, &noted).await.unwrap();
}

/// Whether all of it is still there.
fn assert_is_left(world: &World, resource: Uuid, case: &str) {
    assert_eq!(world.kube.secrets().len(), 2);
    for secret in world.kube.secrets() {
        let annotation = |name: &str| secret.annotations.get(&format!("llm-access.io/{name}")).map(String::as_str);
        assert_eq!((annotation("format"), annotation("speech")), (Some("9"), Some("on")), "{case}: {}", secret.name);
        let key = secret.data.get("OPENAI_API_KEY").or_else(|| secret.data.get("OPENAI_API_KEYS"));
        assert_eq!(secret.data.get("SPEECH_API_KEY"), key, "{case}: {}", secret.name);
    }
    let team = world.gateway.team(&resource.simple().to_string()).unwrap().metadata;
    assert_eq!((&team["format"], &team["speech"]), (&json!(9), &json!({"voices": 2})), "{case}");
    assert_eq!(world.waldur.resource(resource).backend_metadata["llm_access"]["speech_key"], "speech-1", "{case}");
    let notes = &world.waldur.offering_metadata(world.offering)["llm_access"];
    assert_eq!((&notes["format"], &notes["components"]["kestrel-8b:input"]["voice"]), (&json!(9), &json!("low")), "{case}");
}

#[tokio::test]
async fn a_version_and_the_one_after_it_take_turns_without_undoing_each_other() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.patient().await;
        agent.offering_beat().await;
        let resource = world.sold(&agent, "seabird-llm", &["kestrel-8b"]).await;
        written_by_a_later_version(&world, &agent, resource).await;

        // A rollback: this version begins where the later one stopped, and finds nothing to put right.
        let agent = world.patient().await;
        world.faults.reset_calls();
        for _ in 0..3 {
            agent.offering_beat().await;
            world.beat(&agent).await;
            world.slow_beat(&agent).await;
            world.advance(Duration::from_secs(60));
        }
        assert_eq!(world.writes(None), Vec::<String>::new(), "{profile:?}");
        assert!(agent.conditions.all().is_empty(), "{profile:?}: {:?}", agent.conditions.all());

        // It serves as ever: repairs, orders, keys, catalogue. What it does not know outlives all of them.
        world.gateway.edit_team(&resource.simple().to_string(), &json!({"tpm_limit": 5}));
        world.slow_beat(&agent).await;
        assert_eq!(world.gateway.team(&resource.simple().to_string()).unwrap().tpm_limit, Some(100_000));
        assert_is_left(&world, resource, &format!("{profile:?} repaired"));
        let order = world.waldur.update_limits(resource, &[("max_budget", "80")]);
        world.run_to_rest(&agent, 5).await;
        assert_eq!(world.waldur.order_state(order), "done");
        let old = world.key(resource, "chat");
        agent.rotate_keys(resource, &[], true).await.unwrap();
        assert_ne!(world.key(resource, "chat"), old);
        assert_is_left(&world, resource, &format!("{profile:?} rotated"));
        world.write("catalogue.yml", &llm_access_tests::catalogue(&["kestrel-8b", "qwen2.5-0.5b"]));
        for _ in 0..4 {
            agent.offering_beat().await;
            world.slow_beat(&agent).await;
            world.advance(Duration::from_secs(1500));
        }
        let notes = &world.waldur.offering_metadata(world.offering)["llm_access"]["components"];
        assert!(notes["heron-70b:input"]["gone"].is_string(), "{notes}");
        assert_is_left(&world, resource, &format!("{profile:?} and a model fewer"));

        // And its end leaves nothing behind.
        world.waldur.terminate(resource);
        world.run_to_rest(&agent, 9).await;
        world.check();
    }
}

#[tokio::test]
async fn a_replica_that_follows_a_cancelled_order_late_leaves_alone_what_was_restored_meanwhile() {
    for (profile, erred) in [(Profile::V8_0, false), (Profile::Late2026, false), (Profile::Late2026, true)] {
        let world = World::new(profile).await;
        let (first, second) = (world.patient().await, world.patient().await);
        let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
        let refusal = r#"{"error":{"message":"no","type":"bad_request_error","code":"400"}}"#;
        world.faults.add(Rule::new(Fault::status(400, refusal)).peer(Peer::LiteLlm).path("/key/generate").once());
        world.beat(&first).await;
        world.waldur.cancel(order);
        world.advance(Duration::from_secs(600));
        // The other one leads for a while.
        second.resource_beat().await.unwrap();
        second.settle().await;
        assert!(world.gateway.team(&resource.simple().to_string()).is_none(), "{profile:?}");
        let restored = world.waldur.restore(resource);
        world.beat(&second).await;
        assert_eq!(world.waldur.order_state(restored), "done");
        if erred {
            // It serves all the same.
            world.waldur.put_resource_state(resource, "Erred");
        }
        world.beat(&first).await;
        assert!(world.gateway.team(&resource.simple().to_string()).is_some(), "{profile:?}");
        assert_eq!(world.gateway.live_keys(&resource.simple().to_string()).len(), 2);
        assert_eq!(world.secrets(resource).len(), 2);
    }
}
