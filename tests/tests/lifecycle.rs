//! The lifecycle as user stories, on every Waldur generation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_fixtures::waldur::Profile;
use llm_access_tests::{PROFILES, Store, World};
use serde_json::json;

#[tokio::test]
async fn a_project_orders_uses_changes_and_ends_access() {
    for profile in PROFILES {
        for store in [Store::Kube, Store::Directory] {
            let world = World::with_store(profile, store).await;
            let agent = world.agent().await;
            let (order, resource) = world.order("seabird-llm", &["kestrel-8b"]);
            world.beat(&agent).await;
            assert_eq!(world.waldur.order_state(order), "done", "{profile:?}: {:?}", agent.conditions.all());
            world.check();

            // The customer's keys work for what was ordered, and for nothing else.
            let id = resource.simple().to_string();
            let key = world.key(resource, "project");
            assert_ne!(key, world.key(resource, "chat"));
            world.gateway.chat(&key, "kestrel-8b", "P=100 C=20").unwrap();
            assert_eq!(world.gateway.chat(&key, "heron-70b", "P=1 C=1").unwrap_err().0, 403);
            let team = world.gateway.team(&id).unwrap();
            assert_eq!(team.max_budget.unwrap().to_string(), "50");
            assert_eq!((team.tpm_limit, team.rpm_limit), (Some(100_000), Some(600)));
            assert_eq!(team.models, ["kestrel-8b", "qwen3-embedding-0-6b"]);
            let seen = world.waldur.resource(resource);
            match profile {
                Profile::Late2026 => {
                    assert_eq!(seen.endpoints.len(), 2);
                    let keys = world.waldur.api_keys(resource);
                    assert_eq!(keys.len(), 1);
                    assert_eq!((keys[0].client_id.clone(), &keys[0].key), (format!("{id}-1"), &key));
                }
                _ => assert!(seen.report.iter().any(|section| section.body == "https://llm.example.org/v1"), "{:?}", seen.report),
            }
            assert!(!seen.report.iter().any(|section| section.body.contains("sk-")));

            // A larger budget.
            let order = world.waldur.update_limits(resource, &[("max_budget", "80")]);
            world.beat(&agent).await;
            assert_eq!(world.waldur.order_state(order), "done");
            assert_eq!(world.gateway.team(&id).unwrap().max_budget.unwrap().to_string(), "80");
            assert_eq!(world.key(resource, "project"), key, "a change of limits keeps the key");
            world.check();

            // Pause and go on, by the slow beat.
            world.waldur.pause(resource, true);
            world.slow_beat(&agent).await;
            assert_eq!(world.gateway.chat(&key, "kestrel-8b", "P=1 C=1").unwrap_err().0, 401);
            world.waldur.pause(resource, false);
            world.slow_beat(&agent).await;
            world.gateway.chat(&key, "kestrel-8b", "P=11 C=1").unwrap();

            // The end: blocked at once, billed, gone.
            world.advance(Duration::from_secs(60));
            let order = world.waldur.terminate(resource);
            world.beat(&agent).await;
            assert_eq!(world.waldur.order_state(order), "executing", "calls in flight are waited out");
            assert_eq!(world.gateway.chat(&key, "kestrel-8b", "P=1 C=1").unwrap_err().0, 401);
            world.run_to_rest(&agent, 10).await;
            assert_eq!(world.waldur.resource(resource).state, "Terminated");
            let usages = world.waldur.usages(resource, "2026-11");
            assert_eq!(usages["input_tokens"].to_string(), "0.11");
            assert_eq!(usages["output_tokens"].to_string(), "0.02");
            assert!(world.gateway.team(&id).is_none());
            world.check();
        }
    }
}

#[tokio::test]
async fn an_idle_beat_is_one_call_and_an_idle_pass_writes_nothing() {
    for profile in PROFILES {
        let world = World::new(profile).await;
        let agent = world.agent().await;
        for n in 0..5 {
            world.sold(&agent, &format!("llm-{n}"), &["kestrel-8b"]).await;
        }
        world.slow_beat(&agent).await;
        world.faults.reset_calls();
        world.beat(&agent).await;
        assert_eq!(world.faults.count(), 1, "{:?}", world.faults.calls());
        for _ in 0..5 {
            world.slow_beat(&agent).await;
            world.advance(Duration::from_secs(60));
        }
        assert_eq!(world.writes(None), Vec::<String>::new());
        world.check();
    }
}

#[tokio::test]
async fn an_order_for_an_unknown_model_or_a_senseless_limit_is_rejected_with_words_for_the_customer() {
    let world = World::new(Profile::Late2026).await;
    let agent = world.agent().await;
    world.waldur.set_forms(world.offering, json!({}), json!({}));
    let order = |attributes: serde_json::Value, limits: serde_json::Value| {
        world.waldur.order_with_attributes(
            world.offering,
            &world.project,
            attributes.as_object().unwrap().clone(),
            limits.as_object().unwrap().clone(),
        )
    };
    let cases = [
        (json!({"name": "a", "models": ["nosuch-1b"]}), json!({"max_budget": 50}), "nosuch-1b"),
        (json!({"name": "b"}), json!({"max_budget": 50}), "no model was chosen"),
        (json!({"name": "c", "models": ["kestrel-8b"]}), json!({"max_budget": 5000}), "at most 1000"),
        (json!({"name": "d", "models": ["kestrel-8b"]}), json!({"max_budget": 50, "tpm_limit": 0}), "tpm_limit"),
    ];
    for (attributes, limits, words) in cases {
        let (order, resource) = order(attributes, limits);
        world.beat(&agent).await;
        assert_eq!(world.waldur.order_state(order), "rejected");
        let comment = world.waldur.rejection_comment(order);
        assert!(comment.contains(words) && comment.contains("Reference:"), "{comment}");
        assert_eq!(world.waldur.resource(resource).state, "Terminated");
    }
    assert!(world.gateway.teams().is_empty());
    world.check();
}
