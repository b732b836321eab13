//! The agent at a real LiteLLM proxy with a key of its own that may call what docs/security.md lists, and nothing else.
#![cfg(feature = "real")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_agent::domain::BillingMonth;
use llm_access_agent::plan::deployment_id;
use llm_access_fixtures::faults::Peer;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::checker::hash;
use llm_access_tests::identity::{all_routes, as_refused, narrow_key};
use llm_access_tests::real::{RealStore, RealWorld, Time, Variant, command, told};
use serde_json::json;

/// A world whose agent registers a model that no other test of the same proxy has.
struct Site {
    world: RealWorld,
    config: String,
    model: String,
}

impl Site {
    async fn open() -> Self {
        let world = RealWorld::start(Profile::Late2026, Variant::Default, RealStore::Directory, Time::Manual).await;
        let upstream = told("UPSTREAM_URL");
        let config = world
            .config_text("usage: {failed_calls: exclude}\n")
            .replace(
                "gateway: {",
                &format!("gateway: {{manage_models: true, api_base: {{vllm: '{}/v1'}}, ", upstream.trim_end_matches('/')),
            )
            .replace("catalogue: {", "catalogue: {max_shrink: {share: 1, models: 10}, ");
        let model = format!("swift-{}", world.owner);
        Self { world, config, model }
    }

    /// Gives the agent a key that may call these routes.
    async fn allow(&self, user: &str, routes: &[&str]) -> String {
        let user = format!("{}-{user}", self.world.owner);
        let key = narrow_key(&self.world.gateway.url, &told("LITELLM_MASTER_KEY"), &user, routes).await;
        self.world.write("gateway-key", &key);
        key
    }

    fn sell(&self, price: Option<&str>) {
        let usual = llm_access_tests::catalogue(&["kestrel-8b", "heron-70b", "qwen2.5-0.5b"]);
        let entry = price.map(|price| {
            let prices = format!("input_cost_per_token: {price}, output_cost_per_token: {price}");
            format!("  - {{name: swift, served_name: {}, litellm_model_info: {{{prices}}}}}\n", self.model)
        });
        self.world.write("catalogue.yml", &format!("{usual}{}", entry.unwrap_or_default()));
    }

    /// A model comes, changes and goes; access is ordered, drifts, is used and ends. Every condition that held on the way, and
    /// the last states of the two orders.
    async fn life(&self, name: &str, usage: bool) -> (BTreeSet<String>, String, String) {
        let world = &self.world;
        let agent = world.agent_of(&self.config).await;
        let mut told = BTreeSet::new();
        let mut note = |agent: &Agent| {
            told.extend(agent.conditions.all().into_iter().map(|(name, subject, held)| format!("{name} {subject}: {}", held.message)));
        };
        for price in ["1.0e-07", "2.0e-07"] {
            self.sell(Some(price));
            agent.offering_beat().await;
            note(&agent);
        }
        let (order, resource) = world.waldur.order(world.offering, &world.project, name, &["kestrel-8b"], &[("max_budget", "5")]);
        for _ in 0..2 {
            world.beat(&agent).await;
            note(&agent);
            world.slow_beat(&agent).await;
            note(&agent);
            world.advance(Duration::from_secs(60)).await;
        }
        if world.waldur.order_state(order) == "done" {
            // Somebody gives a key a budget of its own.
            let key = world.key(resource, "project").await;
            world.gateway.write("key/update", json!({"key": hash(&key), "max_budget": 1})).await;
            world.slow_beat(&agent).await;
            note(&agent);
            if usage {
                world.chat(resource, "project", "kestrel-8b", "P=1200 C=40").await.unwrap();
                world.ledger_shows(resource, 1200).await;
            }
        }
        drop(agent.usage_beat().await);
        note(&agent);
        // What is still being created cannot be ended.
        let end = if world.waldur.resource(resource).state == "OK" { world.waldur.terminate(resource) } else { order };
        for _ in 0..8 {
            world.beat(&agent).await;
            note(&agent);
            world.advance(Duration::from_secs(120)).await;
        }
        self.sell(None);
        for _ in 0..5 {
            agent.offering_beat().await;
            note(&agent);
            world.advance(Duration::from_secs(1300)).await;
        }
        (told, world.waldur.order_state(order), world.waldur.order_state(end))
    }

    /// Takes what a life left at the gateway away.
    async fn tidy(&self) {
        let id = deployment_id(&self.world.owner, &self.model);
        let info = self.world.gateway.read("model/info").await;
        if info["data"].as_array().unwrap().iter().any(|row| row["model_info"]["id"] == id.as_str()) {
            self.world.gateway.write("model/delete", json!({"id": id})).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_documented_routes_everything_works_and_each_is_called() {
    let site = Site::open().await;
    let world = &site.world;
    let key = site.allow("narrow", &all_routes()).await;
    // It is no key to the models.
    let (status, why) = world.gateway.chat(&format!("{}v1", world.gateway.url), &key, "kestrel-8b", "P=1 C=1").await.unwrap_err();
    assert_eq!(status, 403, "{why}");
    site.sell(Some("1.0e-07"));
    let outcome = command(&world.write("check.yml", &site.config), &["check"]).await;
    assert!(outcome.printed.contains("16 routes that are needed and no others"), "{outcome:?}");

    let (told, order, end) = site.life("narrow", true).await;
    let refused: Vec<&String> =
        told.iter().filter(|text| text.contains("403") || text.contains("401") || text.contains("refuses the agent")).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    assert_eq!((order.as_str(), end.as_str()), ("done", "done"), "{told:#?}");
    let agent = world.agent_of(&site.config).await;
    agent.audit(BillingMonth::of(world.clock.now()), None).await.unwrap();
    world.check().await;
    let called: BTreeSet<String> =
        world.faults.calls().into_iter().filter(|call| call.peer == Peer::LiteLlm).map(|call| call.path).collect();
    for route in all_routes() {
        assert!(called.iter().any(|path| path.starts_with(route.trim_end_matches('*'))), "{route} is not called");
    }
    site.tidy().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_one_of_them_that_one_is_named_and_no_order_errs() {
    let site = Site::open().await;
    for (n, left_out) in all_routes().into_iter().enumerate() {
        let routes: Vec<&str> = all_routes().into_iter().filter(|route| *route != left_out).collect();
        site.allow(&format!("without-{n}"), &routes).await;
        site.sell(Some("1.0e-07"));
        let outcome = command(&site.world.write("check.yml", &site.config), &["check"]).await;
        let line = outcome.printed.lines().find(|line| line.starts_with("FAIL  gateway") && line.contains(left_out));
        assert!(outcome.code == Some(2) && line.is_some(), "{left_out}: {outcome:?}");
        if left_out != "/key/info" {
            let usage = ["/team/daily/activity", "/spend/logs/v2"].contains(&left_out);
            let (told, order, end) = site.life(&format!("without-{n}"), usage).await;
            let named = told.iter().any(|text| text.contains(&format!(" {}", as_refused(left_out))));
            // A log of calls that cannot be read proves nothing, and is a warning in the agent's log.
            assert!(named || left_out == "/spend/logs/v2", "{left_out}: {told:#?}");
            for state in [order, end] {
                assert!(["done", "executing"].contains(&state.as_str()), "{left_out}: {state}");
            }
        }
        site.tidy().await;
    }
}
