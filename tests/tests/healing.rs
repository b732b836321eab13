//! Orders that erred, resources that look broken, and what is left to people.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_fixtures::faults::{Fault, Peer, Rule, RuleId};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::{PROFILES, Store, World, checker};
use serde_json::{Value, json};
use uuid::Uuid;

const HOUR: Duration = Duration::from_secs(3600);

/// The gateway refuses every call to `path` for good.
fn refuse(world: &World, path: &str) -> RuleId {
    let body = r#"{"error":{"message":"{'error': 'Tag budget of customer ACME exceeded, see https://intern.example/x'}","type":"bad_request_error","param":null,"code":"400"}}"#;
    world.faults.add(Rule::new(Fault::status(400, body)).peer(Peer::LiteLlm).method("POST").path(path))
}

/// Beats until the order erred.
async fn until_erred(world: &World, agent: &Agent, order: Uuid) {
    for _ in 0..4 {
        world.beat(agent).await;
        if world.waldur.order_state(order) == "erred" {
            return;
        }
        world.advance(HOUR);
    }
    panic!("{} after four beats; {:?}", world.waldur.order_state(order), agent.conditions.all());
}

/// Which attempt the error of an order speaks of.
fn attempt(world: &World, order: Uuid) -> String {
    let message = world.waldur.error_of(order);
    let (_, rest) = message.split_once("(attempt ").unwrap_or_else(|| panic!("{message:?}"));
    rest.split_once(')').unwrap().0.to_owned()
}

#[tokio::test]
async fn a_create_refused_for_good_errs_with_a_text_for_the_customer_and_heals_when_the_cause_is_gone() {
    for profile in PROFILES {
        for store in [Store::Kube, Store::Directory] {
            let world = World::with_store(profile, store).await;
            let agent = world.patient().await;
            // Up to the keys, so that there is a team: late-2026 Waldur ends a create without a backend_id.
            let rule = refuse(&world, "/key/generate");
            let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
            world.beat(&agent).await;
            assert_eq!(world.waldur.order_state(order), "executing", "one refusal may be a mistake");
            until_erred(&world, &agent, order).await;
            let view = world.waldur.order_view(order);
            assert!(view.error_message.starts_with("llm-access-agent: the order could not be carried out"), "{view:?}");
            let (_, reference) = view.error_message.split_once("Reference: ").unwrap();
            assert!(reference.len() == 8 && view.error_traceback.contains(reference), "{view:?}");
            assert!(!view.error_message.contains("ACME") && !view.error_traceback.contains("ACME"), "the cause is for the log: {view:?}");
            assert_eq!(attempt(&world, order), "1 of 4");
            assert_eq!(world.waldur.resource(resource).state, "Erred");
            let secrets = world.secrets(resource);
            assert_eq!(secrets.len(), 2, "kept for the next attempt");

            world.faults.remove(rule);
            world.advance(HOUR);
            world.slow_beat(&agent).await;
            assert_eq!(world.waldur.order_state(order), "executing", "{:?}", agent.conditions.all());
            world.beat(&agent).await;
            assert_eq!(world.waldur.order_state(order), "done", "{profile:?} {store:?}");
            assert_eq!(world.waldur.resource(resource).state, "OK");
            assert_eq!(world.secrets(resource)["chat"]["OPENAI_API_KEYS"], secrets["chat"]["OPENAI_API_KEYS"]);
            world.slow_beat(&agent).await;
            assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
            world.check();
        }
    }
}

#[tokio::test]
async fn an_erred_order_is_taken_up_three_times_and_then_only_by_command() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let mut agent = world.patient().await;
        let rule = refuse(&world, "/key/generate");
        let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
        for n in 1..=4 {
            until_erred(&world, &agent, order).await;
            assert_eq!(attempt(&world, order), format!("{n} of 4"), "{profile:?}");
            // Most servers keep the message, so that a restart between two attempts does not begin to count again.
            if n == 2 && profile != Profile::Late2026 {
                world.slow_beat(&agent).await;
                agent = world.patient().await;
                world.advance(HOUR);
                continue;
            }
            world.advance(HOUR);
            world.slow_beat(&agent).await;
        }
        assert_eq!(world.waldur.order_state(order), "erred");
        world.faults.remove(rule);
        for _ in 0..3 {
            world.advance(HOUR);
            world.slow_beat(&agent).await;
            world.beat(&agent).await;
        }
        assert_eq!(world.waldur.order_state(order), "erred", "four times is enough");
        let (_, _, condition) = agent.conditions.all().into_iter().find(|(name, ..)| *name == "order-given-up").unwrap();
        assert!(condition.message.contains(&format!("llm-access-agent orders retry {}", order.simple())), "{}", condition.message);
        // The same with an agent that knows nothing.
        let fresh = world.patient().await;
        world.slow_beat(&fresh).await;
        assert!(fresh.conditions.holds("order-given-up"));
        assert_eq!(world.waldur.order_state(order), "erred");

        // A person says so.
        let retry = world.patient().await;
        llm_access_agent::cli::commands::retry(&retry, order).await.unwrap();
        world.run_to_rest(&agent, 3).await;
        assert_eq!(world.waldur.order_state(order), "done");
        world.slow_beat(&agent).await;
        assert!(agent.conditions.all().is_empty(), "{:?}", agent.conditions.all());
        assert_eq!(world.waldur.resource(resource).state, "OK");
        world.check();
    }
}

#[tokio::test]
async fn a_create_that_erred_before_anything_was_made_leaves_nothing_behind() {
    // Late-2026 Waldur ends such a resource; the others keep it Erred and the order heals.
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.patient().await;
        let rule = refuse(&world, "/team/new");
        let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
        until_erred(&world, &agent, order).await;
        assert!(world.gateway.teams().is_empty());
        world.faults.remove(rule);
        world.advance(HOUR);
        world.slow_beat(&agent).await;
        world.run_to_rest(&agent, 3).await;
        if profile == Profile::Late2026 {
            assert_eq!(world.waldur.resource(resource).state, "Terminated");
            assert!(world.secrets(resource).is_empty(), "stored for a resource that has ended");
        } else {
            assert_eq!(world.waldur.order_state(order), "done");
        }
        world.check();
    }
}

#[tokio::test]
async fn an_update_refused_for_good_errs_and_heals() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.patient().await;
        let resource = world.sold(&agent, "seabird-llm", &["kestrel-8b"]).await;
        let key = world.key(resource, "project");
        let rule = refuse(&world, "/team/update");
        let order = world.waldur.update_limits(resource, &[("max_budget", "80")]);
        until_erred(&world, &agent, order).await;
        assert_eq!(attempt(&world, order), "1 of 4");
        assert_eq!(world.waldur.resource(resource).state, "Erred");
        world.gateway.chat(&key, "kestrel-8b", "P=1 C=1").unwrap();
        world.faults.remove(rule);
        world.advance(HOUR);
        world.slow_beat(&agent).await;
        world.run_to_rest(&agent, 3).await;
        assert_eq!(world.waldur.order_state(order), "done");
        assert_eq!(world.gateway.team(&resource.simple().to_string()).unwrap().max_budget.unwrap().to_string(), "80");
        assert_eq!(world.key(resource, "project"), key);
        world.check();
    }
}

#[tokio::test]
async fn an_end_is_never_erred() {
    for profile in PROFILES {
        for path in ["/team/update", "/key/delete", "/team/delete"] {
            let world = World::new(profile).await;
            let agent = world.patient().await;
            let resource = world.sold(&agent, "seabird-llm", &["kestrel-8b"]).await;
            let rule = refuse(&world, path);
            let order = world.waldur.terminate(resource);
            for _ in 0..8 {
                world.beat(&agent).await;
                world.slow_beat(&agent).await;
                world.advance(HOUR);
                assert_eq!(world.waldur.order_state(order), "executing", "{profile:?} {path}");
            }
            assert!(
                agent.schedule.waiting().iter().any(|(waiting, _, why)| *waiting == order && why.contains("400")),
                "{:?}",
                agent.schedule.waiting()
            );
            world.faults.remove(rule);
            for _ in 0..4 {
                world.beat(&agent).await;
                world.advance(HOUR);
            }
            assert_eq!(world.waldur.order_state(order), "done", "{profile:?} {path}");
            world.check();
        }
    }
}

#[tokio::test]
async fn a_resource_that_only_looks_broken_is_set_to_ok_where_the_server_can() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.patient().await;
        let resource = world.sold(&agent, "seabird-llm", &["kestrel-8b"]).await;
        let key = world.key(resource, "project");
        world.waldur.put_resource_state(resource, "Erred");
        // And something is really broken with it as well.
        world.gateway.delete_key(&checker::hash(&key));
        world.slow_beat(&agent).await;
        world.gateway.chat(&key, "kestrel-8b", "P=1 C=1").unwrap();
        if profile == Profile::Y2024 {
            assert_eq!(world.waldur.resource(resource).state, "Erred", "this server has no such call");
            world.faults.reset_calls();
            world.advance(Duration::from_secs(60));
            world.slow_beat(&agent).await;
            assert_eq!(world.writes(None), Vec::<String>::new(), "asked once, not at every beat");
            world.waldur.put_resource_state(resource, "OK");
        }
        assert_eq!(world.waldur.resource(resource).state, "OK", "{profile:?}");
        world.check();
    }
}

#[tokio::test]
async fn an_update_that_staff_erred_is_not_taken_up_and_the_resource_keeps_what_it_had() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.patient().await;
        let resource = world.sold(&agent, "seabird-llm", &["kestrel-8b"]).await;
        let key = world.key(resource, "project");
        let rule = world.faults.add(Rule::new(Fault::status(503, "busy")).peer(Peer::LiteLlm).path("/team/update"));
        let order = world.waldur.update_limits(resource, &[("max_budget", "80")]);
        world.beat(&agent).await;
        assert_eq!(world.waldur.order_state(order), "executing");
        world.waldur.staff_erred(order);
        world.faults.remove(rule);
        for _ in 0..3 {
            world.advance(HOUR);
            world.beat(&agent).await;
            world.slow_beat(&agent).await;
        }
        let view = world.waldur.order_view(order);
        assert_eq!((view.state.as_str(), view.error_message.as_str()), ("erred", "set by staff"), "{profile:?}");
        assert_eq!(world.gateway.team(&resource.simple().to_string()).unwrap().max_budget.unwrap().to_string(), "50");
        world.gateway.chat(&key, "kestrel-8b", "P=1 C=1").unwrap();
        if profile == Profile::Y2024 {
            world.waldur.put_resource_state(resource, "OK");
        }
        assert_eq!(world.waldur.resource(resource).state, "OK", "{profile:?}");
        world.check();
    }
}

#[tokio::test]
async fn a_create_that_staff_erred_is_tidied_away() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.patient().await;
        let rule = world.faults.add(Rule::new(Fault::status(503, "busy")).peer(Peer::LiteLlm).path("/key/generate"));
        let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
        world.beat(&agent).await;
        assert_eq!(world.gateway.teams().len(), 1);
        world.waldur.staff_erred(order);
        world.faults.remove(rule);
        for _ in 0..2 {
            world.advance(HOUR);
            world.beat(&agent).await;
            world.slow_beat(&agent).await;
        }
        assert_eq!(world.waldur.order_state(order), "erred");
        assert!(world.gateway.teams().is_empty() && world.secrets(resource).is_empty(), "{profile:?}");
        world.check();
    }
}

#[tokio::test]
async fn an_order_of_an_unknown_type_is_left_to_people() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.patient().await;
    let resource = world.sold(&agent, "seabird-llm", &["kestrel-8b"]).await;
    let order = world.waldur.update_limits(resource, &[("max_budget", "80")]);
    // A server of tomorrow knows a type that we do not.
    let url = world
        .waldur
        .api_url()
        .join(&format!("marketplace-orders/?offering_uuid={}&state=pending-provider", world.offering.simple()))
        .unwrap();
    let http = reqwest::Client::builder().build().unwrap();
    let list = http.get(url).header("Authorization", format!("Token {}", world.waldur.agent_token())).send().await.unwrap();
    let mut rows: Value = serde_json::from_str(&list.text().await.unwrap()).unwrap();
    assert_eq!(rows[0]["type"], "Update");
    rows[0]["type"] = json!("Transfer");
    let headers = vec![("X-Result-Count".to_owned(), "1".to_owned())];
    let rule = world.faults.add(
        Rule::new(Fault::Replace { status: 200, headers, body: rows.to_string() }).peer(Peer::Waldur).path("/api/marketplace-orders/?"),
    );
    world.faults.reset_calls();
    for _ in 0..3 {
        world.beat(&agent).await;
        world.advance(Duration::from_secs(60));
    }
    assert_eq!(world.writes(None), Vec::<String>::new());
    assert_eq!(world.waldur.order_state(order), "pending-provider");
    let (_, subject, condition) = agent.conditions.all().into_iter().find(|(name, ..)| *name == "unknown-order-type").unwrap();
    assert!(subject == order.simple().to_string() && condition.message.contains("Transfer"), "{}", condition.message);
    world.faults.remove(rule);
    world.run_to_rest(&agent, 3).await;
    assert!(!agent.conditions.holds("unknown-order-type"), "{:?}", agent.conditions.all());
    world.check();
}

/// An agent whose offering says this about approval.
async fn agent_with_approval(world: &World, approval: &str) -> Agent {
    let text = world.config_text("").replace("    limits:", &format!("    approval: {approval}\n    limits:"));
    world.patient_with(&text).await
}

#[tokio::test]
async fn with_manual_approval_nothing_happens_until_a_person_approves() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        world.waldur.set_allocation_step(false);
        let agent = agent_with_approval(&world, "{create: manual, update: manual}").await;
        let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
        // Not even what would be rejected: a person decides.
        world.waldur.set_forms(world.offering, json!({}), json!({}));
        let (other, _) = world.order("other-llm", &["no-such-model"]);
        for _ in 0..3 {
            world.beat(&agent).await;
            world.slow_beat(&agent).await;
            world.advance(Duration::from_secs(60));
        }
        assert_eq!(world.writes(None), Vec::<String>::new(), "{profile:?}");
        world.waldur.staff_approve(order);
        world.waldur.staff_reject(other);
        world.run_to_rest(&agent, 3).await;
        assert_eq!(world.waldur.order_state(order), "done");
        world.check();

        let order = world.waldur.update_limits(resource, &[("max_budget", "80")]);
        world.faults.reset_calls();
        world.beat(&agent).await;
        assert_eq!((world.writes(None), world.waldur.order_state(order)), (vec![], "pending-provider".into()));
        world.waldur.staff_approve(order);
        world.run_to_rest(&agent, 3).await;
        assert_eq!(world.gateway.team(&resource.simple().to_string()).unwrap().max_budget.unwrap().to_string(), "80");

        // An end is carried out at once unless the operator says otherwise.
        let order = world.waldur.terminate(resource);
        world.beat(&agent).await;
        assert_eq!(world.waldur.order_state(order), "executing");
        world.run_to_rest(&agent, 9).await;
        world.check();
    }
}

#[tokio::test]
async fn an_end_may_be_made_manual_too() {
    let world = World::new(Profile::V8_0).await;
    let agent = agent_with_approval(&world, "{terminate: manual}").await;
    let resource = world.sold(&agent, "seabird-llm", &["kestrel-8b"]).await;
    let order = world.waldur.terminate(resource);
    world.faults.reset_calls();
    world.beat(&agent).await;
    world.slow_beat(&agent).await;
    assert_eq!((world.writes(None), world.waldur.order_state(order)), (vec![], "pending-provider".into()));
    world.waldur.staff_approve(order);
    world.run_to_rest(&agent, 9).await;
    world.check();
}

#[tokio::test]
async fn an_end_is_approved_even_when_nothing_else_can_be_judged() {
    let world = World::new(Profile::Y2024).await;
    let agent = world.patient().await;
    let resource = world.sold(&agent, "seabird-llm", &["kestrel-8b"]).await;
    world.write("catalogue.yml", "");
    world.waldur.terminate(resource);
    let fresh = world.patient().await;
    world.run_to_rest(&fresh, 9).await;
    world.check();
}

#[tokio::test]
async fn a_restored_resource_takes_the_next_key_number() {
    for profile in [Profile::V8_0, Profile::Late2026] {
        for (store, mint) in [(Store::Kube, false), (Store::Directory, false), (Store::Kube, true)] {
            let world = World::with_store(profile, store).await;
            world.gateway.forbid_custom_keys(mint);
            let agent = world.patient().await;
            let resource = world.sold(&agent, "seabird-llm", &["kestrel-8b"]).await;
            let id = resource.simple().to_string();
            let mut old = vec![world.key(resource, "project"), world.key(resource, "chat")];
            for n in 2..=3 {
                world.waldur.terminate(resource);
                world.run_to_rest(&agent, 9).await;
                world.check();
                world.waldur.restore(resource);
                // The second time with an agent that remembers nothing.
                let fresh = world.patient().await;
                world.run_to_rest(if n == 2 { &agent } else { &fresh }, 4).await;
                assert_eq!(world.waldur.resource(resource).state, "OK", "{profile:?} {store:?}");
                let mut aliases: Vec<String> = world.gateway.live_keys(&id).into_iter().filter_map(|key| key.alias).collect();
                aliases.sort();
                assert_eq!(aliases, [format!("{id}-{n}"), format!("{id}-chat-{n}")], "{profile:?} {store:?} mint={mint}");
                if profile == Profile::Late2026 {
                    let shown: Vec<String> =
                        world.waldur.api_keys(resource).into_iter().filter(|key| key.state == "OK").map(|key| key.client_id).collect();
                    assert_eq!(shown, [format!("{id}-{n}")]);
                }
                for slot in ["project", "chat"] {
                    let key = world.key(resource, slot);
                    assert!(!old.contains(&key), "a key is never used again");
                    old.push(key);
                }
                world.check();
            }
        }
    }
}

#[tokio::test]
async fn what_another_agent_made_is_left_alone() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.patient().await;
        world.waldur.set_allocation_step(false);
        // Before its create is approved, and with an update and an end on its way.
        let (create, created) = world.order("created", &["kestrel-8b"]);
        world.waldur.put_backend_id(created, "skua-llm-1");
        let add = |name: &str| {
            let resource = world.waldur.add_resource(world.offering, &world.project, name, &["kestrel-8b"], &[("max_budget", "50")]);
            world.waldur.put_backend_id(resource, "skua-llm-2");
            resource
        };
        let (changing, ending) = (add("changing"), add("ending"));
        let update = world.waldur.update_limits(changing, &[("max_budget", "80")]);
        let end = world.waldur.terminate(ending);
        // And one that another agent took while we worked on it.
        let (taken_order, taken) = world.order("taken", &["kestrel-8b"]);
        world.waldur.staff_approve(taken_order);
        world.waldur.put_backend_id(taken, "skua-llm-3");
        world.faults.reset_calls();
        for _ in 0..3 {
            world.beat(&agent).await;
            world.slow_beat(&agent).await;
            world.advance(HOUR);
        }
        assert_eq!(world.writes(None), Vec::<String>::new(), "{profile:?}");
        for order in [create, update, end] {
            assert_eq!(world.waldur.order_state(order), "pending-provider", "{profile:?}");
        }
        assert_eq!(world.waldur.order_state(taken_order), "executing");
        let named: Vec<String> =
            agent.conditions.all().into_iter().filter(|(name, ..)| *name == "foreign-backend-id").map(|(_, subject, _)| subject).collect();
        let mut all: Vec<String> = [created, changing, ending, taken].iter().map(|id| id.simple().to_string()).collect();
        all.sort();
        assert_eq!(named, all);
        // The word of the operator: the id goes, and the agent takes over.
        for resource in [created, changing, ending, taken] {
            world.waldur.put_backend_id(resource, "");
        }
        world.run_to_rest(&agent, 12).await;
        world.slow_beat(&agent).await;
        assert!(!agent.conditions.holds("foreign-backend-id"), "{:?}", agent.conditions.all());
        world.check();
    }
}

#[tokio::test]
async fn where_waldur_governs_keys_only_the_chat_key_is_made() {
    for (store, mint) in [(Store::Kube, false), (Store::Directory, false), (Store::Kube, true)] {
        let world = World::with_store(Profile::Late2026, store).await;
        world.gateway.forbid_custom_keys(mint);
        world.waldur.set_plugin_option(world.offering, "enable_api_key_provisioning", json!(true));
        let agent = world.patient().await;
        let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
        world.run_to_rest(&agent, 3).await;
        assert_eq!(world.waldur.order_state(order), "done");
        let id = resource.simple().to_string();
        let aliases = |world: &World| world.gateway.live_keys(&id).into_iter().filter_map(|key| key.alias).collect::<Vec<_>>();
        assert_eq!(aliases(&world), [format!("{id}-chat-1")]);
        assert_eq!(world.secrets(resource).keys().collect::<Vec<_>>(), ["chat"]);
        assert!(world.waldur.api_keys(resource).is_empty());
        world.gateway.chat(&world.key(resource, "chat"), "kestrel-8b", "P=1 C=1").unwrap();
        assert!(agent.conditions.holds("keys-governed-by-waldur"));

        // A key that Waldur's own way of governing made in our team is not ours to delete.
        world.gateway.add_foreign_key(&id, &format!("{id}-1"));
        world.faults.reset_calls();
        world.slow_beat(&agent).await;
        assert_eq!(world.writes(None), Vec::<String>::new());
        assert_eq!(aliases(&world).len(), 2);

        // No longer governed: the project key is made, and it takes a number that is free.
        world.waldur.set_plugin_option(world.offering, "enable_api_key_provisioning", json!(false));
        world.slow_beat(&agent).await;
        world.slow_beat(&agent).await;
        assert!(!agent.conditions.holds("keys-governed-by-waldur"));
        assert_eq!(world.secrets(resource).len(), 2);
        assert!(aliases(&world).contains(&format!("{id}-2")), "{:?}", aliases(&world));
        world.check();
    }
}

#[tokio::test]
async fn a_peer_that_answers_in_vain_is_named_until_it_does_what_is_asked() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.agent().await;
    let broken = world.faults.add(Rule::new(Fault::status(503, r#"{"detail":"no workers"}"#)).peer(Peer::LiteLlm));
    let (order, _) = world.order("aurora", &["kestrel-8b"]);
    for _ in 0..8 {
        world.beat(&agent).await;
        world.advance(Duration::from_secs(700));
    }
    assert!(agent.conditions.holds("gateway-failing"), "{:?}", agent.conditions.all());
    assert_eq!(world.waldur.order_state(order), "executing");
    world.faults.remove(broken);
    // The last wait may be twice the longest.
    world.run_to_rest(&agent, 25).await;
    assert!(!agent.conditions.holds("gateway-failing"));
    world.check();
}

#[tokio::test]
async fn a_clock_that_was_set_back_delays_no_order() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.agent().await;
    let (order, resource) = world.order("aurora", &["kestrel-8b"]);
    let rule = world.faults.add(
        Rule::new(Fault::Status { status: 500, headers: Vec::new(), body: "{}".into(), after_effect: false })
            .peer(Peer::LiteLlm)
            .path("/team/new"),
    );
    world.beat(&agent).await;
    world.faults.remove(rule);
    assert_eq!(world.waldur.order_state(order), "executing");
    // The machine was a day ahead until now.
    world.set_time("2026-11-09T09:00:00Z");
    world.run_to_rest(&agent, 2).await;
    assert_eq!(world.waldur.order_state(order), "done");
    // An end waits no longer than it has to either, wherever it is when the clock is set back.
    let end = world.waldur.terminate(resource);
    for to in ["2026-11-08T09:00:00Z", "2026-11-07T09:00:00Z"] {
        world.beat(&agent).await;
        for _ in 0..if to.contains("07T") { 3 } else { 0 } {
            world.advance(Duration::from_secs(60));
            world.beat(&agent).await;
        }
        assert_eq!(world.waldur.order_state(end), "executing");
        world.set_time(to);
    }
    world.run_to_rest(&agent, 8).await;
    assert_eq!(world.waldur.order_state(end), "done");
    world.check();
}

#[tokio::test]
async fn a_right_that_a_repair_lacked_is_not_missed_once_the_resource_has_ended() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.patient().await;
        let resource = world.sold(&agent, "seabird-llm", &["kestrel-8b"]).await;
        let id = resource.simple().to_string();
        world.gateway.edit_team(&id, &json!({"tpm_limit": 1}));
        let refusal = Fault::status(403, r#"{"detail":"You do not have permission to perform this action."}"#);
        let rule = world.faults.add(Rule::new(refusal).peer(Peer::Waldur).path(&format!("/marketplace-provider-resources/{id}/")));
        world.slow_beat(&agent).await;
        assert!(agent.conditions.holds("waldur-credential"), "{:?}", agent.conditions.all());
        world.faults.remove(rule);
        // Before the repair is tried again, the customer ends the resource.
        world.waldur.terminate(resource);
        world.run_to_rest(&agent, 9).await;
        world.slow_beat(&agent).await;
        world.beat(&agent).await;
        assert!(agent.conditions.all().is_empty(), "{profile:?}: {:?}", agent.conditions.all());
        assert!(agent.schedule.waiting().is_empty(), "{:?}", agent.schedule.waiting());
        world.check();
    }
}

#[tokio::test]
async fn a_repair_ends_where_an_end_begins() {
    for profile in PROFILES {
        let world = Arc::new(World::new(profile).await);
        let agent = world.patient().await;
        let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        let team = resource.simple().to_string();
        let spoil = || world.gateway.edit_team(&team, &json!({"tpm_limit": 5})).unwrap();
        let first_write = || world.faults.calls().iter().position(|call| call.path.contains("/team/update")).unwrap() + 1;
        spoil();
        world.faults.reset_calls();
        world.slow_beat(&agent).await;
        let k = first_write();

        spoil();
        world.faults.reset_calls();
        // Another process of the agent carries the order out, and has got as far as blocking the team.
        let there = Arc::clone(&world);
        let of = team.clone();
        world.faults.before_call(k + 1, move || {
            let order = there.waldur.terminate(resource);
            if there.waldur.order_state(order) == "pending-provider" {
                there.waldur.staff_approve(order);
            }
            assert_eq!(there.waldur.resource(resource).state, "Terminating");
            there.gateway.edit_team(&of, &json!({"blocked": true})).unwrap();
        });
        world.slow_beat(&agent).await;
        assert_eq!(first_write(), k, "the same repair");
        assert!(world.gateway.team(&team).unwrap().blocked, "{profile:?}: {:?}", world.writes(None));
        world.run_to_rest(&agent, 40).await;
        assert!(world.gateway.team(&team).is_none());
        world.check();
    }
}
