//! The catalogue drives a real LiteLLM proxy: models are registered, repriced, dropped and return, and calls cost what the
//! catalogue says.
#![cfg(feature = "real")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_agent::plan::deployment_id;
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::real::{Outage, Outcome, RealStore, RealWorld, Time, Variant, command, eventually, told};
use rust_decimal::Decimal;
use serde_json::{Value, json};
use uuid::Uuid;

/// More than the hold of a catalogue.
const HOLD: Duration = Duration::from_secs(3700);

/// A world with models that no other test of the same proxy has.
struct Shop {
    world: RealWorld,
    config: String,
    /// A model that generates, and one that embeds.
    swift: String,
    tern: String,
}

impl Shop {
    async fn open() -> Self {
        let world = RealWorld::start(Profile::Late2026, Variant::Default, RealStore::Directory, Time::Manual).await;
        let (swift, tern) = (format!("swift-{}", world.owner), format!("tern.{}", world.owner));
        let upstream = told("UPSTREAM_URL");
        let key = world.write("model-key", "sk-of-the-servers-0001");
        let bases = format!("{{vllm: '{0}/v1', tei: '{0}/v1'}}", upstream.trim_end_matches('/'));
        let config = world
            .config_text("")
            .replace("gateway: {", &format!("gateway: {{manage_models: true, model_key_file: {}, api_base: {bases}, ", key.display()))
            .replace("catalogue: {", "catalogue: {max_shrink: {share: 1, models: 10}, ")
            .replace("always_include: [qwen3-embedding-0-6b], ", "");
        world.write("config.yml", &config);
        let shop = Self { world, config, swift, tern };
        shop.sells("input_cost_per_token: 3.0e-07, output_cost_per_token: 9.0e-07");
        shop
    }

    /// Writes the catalogue: the embedder, and the other model with these entries of its `litellm_model_info`.
    fn sells(&self, prices: &str) {
        let swift = format!("  - {{name: swift, served_name: {}, litellm_model_info: {{{prices}}}}}\n", self.swift);
        self.write(&swift);
    }

    fn write(&self, more: &str) {
        let tern = format!(
            "  - {{name: tern, served_name: {}, runtime: tei, litellm_model_info: {{input_cost_per_token: 2.0e-08}}}}\n",
            self.tern
        );
        self.world.write("catalogue.yml", &format!("inference_models:\n{tern}{more}"));
    }

    async fn agent(&self) -> Agent {
        self.world.agent_of(&self.config).await
    }

    /// The deployments under a public name, as the proxy shows them.
    async fn served(&self, name: &str) -> Vec<Value> {
        let info = self.world.gateway.read("model/info").await;
        info["data"].as_array().unwrap().iter().filter(|row| row["model_name"] == name).cloned().collect()
    }

    async fn check(&self) -> Outcome {
        command(&self.world.write("check.yml", &self.config), &["check"]).await
    }

    /// What a call that was just made added to the ledger of a resource's team.
    async fn costs(&self, resource: Uuid, tokens_so_far: i64) -> Decimal {
        self.world.ledger_shows(resource, tokens_so_far).await.spend
    }

    /// Takes what is left out of the proxy.
    async fn close(self) {
        for name in [&self.swift, &self.tern] {
            for row in self.served(name).await {
                self.world.gateway.write("model/delete", json!({"id": row["model_info"]["id"]})).await;
            }
        }
    }
}

fn dec(text: &str) -> Decimal {
    text.parse().unwrap()
}

/// Calls that changed deployments since the log was reset.
fn writes(world: &RealWorld) -> Vec<String> {
    world.writes().into_iter().filter(|write| write.contains("/model")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_added_repriced_dropped_and_returns() {
    let shop = Shop::open().await;
    let (world, swift) = (&shop.world, shop.swift.as_str());
    // Registered, though the answer is lost.
    let agent = shop.agent().await;
    world.faults.add(Rule::new(Fault::LoseAnswer).peer(Peer::LiteLlm).path("/model/new").once());
    agent.offering_beat().await;
    let rows = shop.served(swift).await;
    assert_eq!(rows.len(), 1, "{rows:?}");
    let id = deployment_id(&world.owner, swift);
    assert_eq!((rows[0]["model_info"]["id"].as_str(), &rows[0]["model_info"]["db_model"]), (Some(id.as_str()), &json!(true)));
    assert_eq!(rows[0]["model_info"]["input_cost_per_token"].to_string(), "3e-7");
    let embedder = shop.served(&shop.tern).await;
    assert_eq!(
        (embedder[0]["model_info"]["mode"].as_str(), embedder[0]["model_info"]["input_cost_per_token"].to_string().as_str()),
        (Some("embedding"), "2e-8")
    );
    world.faults.reset_calls();
    for agent in [agent.clone(), shop.agent().await] {
        agent.offering_beat().await;
        agent.offering_beat().await;
    }
    assert_eq!(writes(world), Vec::<String>::new());
    let about = |agent: &Agent| {
        agent
            .conditions
            .all()
            .into_iter()
            .filter(|(name, ..)| name.starts_with("gateway") && *name != "gateway-model-not-listed")
            .collect::<Vec<_>>()
    };
    assert!(about(&agent).is_empty(), "{:?}", about(&agent));

    // Sold, and charged at the catalogue's price.
    let resource = world.sold(&agent, "seabird-llm", &[swift], &[("max_budget", "5")]).await;
    world.check().await;
    world.chat(resource, "project", swift, "P=10000 C=1000").await.unwrap();
    let mut spend = dec("0.0039");
    assert_eq!(shop.costs(resource, 10_000).await, spend);

    // Repriced: the next call costs the new price, and one without a price nothing.
    shop.sells("input_cost_per_token: 5.0e-07, output_cost_per_token: 1.3e-06");
    agent.gateway_beat().await;
    world.chat(resource, "project", swift, "P=10000 C=1000").await.unwrap();
    spend += dec("0.0063");
    assert_eq!(shop.costs(resource, 20_000).await, spend);
    shop.sells("max_tokens: 100");
    // A lost price is believed when the hold is over.
    for _ in 0..3 {
        agent.gateway_beat().await;
        world.advance(HOLD / 2).await;
    }
    agent.gateway_beat().await;
    assert!(about(&agent).is_empty(), "{:?}", about(&agent));
    world.chat(resource, "project", swift, "P=10000 C=1000").await.unwrap();
    assert_eq!(shop.costs(resource, 30_000).await, spend);
    shop.sells("input_cost_per_token: 3.0e-07, output_cost_per_token: 9.0e-07");
    agent.gateway_beat().await;
    world.chat(resource, "project", swift, "P=10000 C=1000").await.unwrap();
    spend += dec("0.0039");
    assert_eq!(shop.costs(resource, 40_000).await, spend);

    // Dropped: nothing until it counts as gone, then deployment and access.
    shop.write("");
    for _ in 0..3 {
        agent.offering_beat().await;
        world.advance(HOLD / 4).await;
    }
    world.slow_beat(&agent).await;
    world.chat(resource, "project", swift, "P=1 C=1").await.unwrap();
    for _ in 0..2 {
        world.advance(HOLD / 2).await;
        agent.offering_beat().await;
    }
    world.slow_beat(&agent).await;
    assert_eq!(shop.served(swift).await, Vec::<Value>::new());
    assert_eq!(shop.served(&shop.tern).await.len(), 1);
    let (status, why) = world.chat(resource, "project", swift, "P=1 C=1").await.unwrap_err();
    assert!([400, 403].contains(&status), "{status} {why}");
    assert_eq!(world.gateway.team(&resource.simple().to_string()).await.unwrap()["models"], json!(["no-default-models"]));

    // Back under the same id, for those who ordered it.
    shop.sells("input_cost_per_token: 3.0e-07, output_cost_per_token: 9.0e-07");
    agent.offering_beat().await;
    world.slow_beat(&agent).await;
    assert_eq!(shop.served(swift).await[0]["model_info"]["id"], id.as_str());
    world.chat(resource, "project", swift, "P=10000 C=1000").await.unwrap();
    spend += dec("0.0039");
    // The call in the hold cost a token of each.
    let last = dec("0.0000012");
    assert_eq!(shop.costs(resource, 50_001).await, spend + last);
    world.check().await;
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_outage_changes_no_deployment() {
    let shop = Shop::open().await;
    let agent = shop.agent().await;
    agent.gateway_beat().await;
    let before = shop.served(&shop.swift).await;
    let outage = Outage::of("database").await;
    shop.write("");
    for _ in 0..4 {
        agent.gateway_beat().await;
        shop.world.advance(HOLD).await;
    }
    assert!(agent.conditions.holds("gateway-models-unread"), "{:?}", agent.conditions.all());
    outage.over();
    eventually("a proxy with its database", async || {
        agent.gateway_beat().await;
        if agent.conditions.holds("gateway-models-unread") { Err(format!("{:?}", agent.conditions.all())) } else { Ok(()) }
    })
    .await;
    assert_eq!((before.len(), shop.served(&shop.swift).await), (1, before));
    for _ in 0..4 {
        shop.world.advance(HOLD / 3).await;
        agent.gateway_beat().await;
    }
    assert_eq!(shop.served(&shop.swift).await.len(), 0);
    assert_eq!(shop.served(&shop.tern).await.len(), 1);
    shop.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check_finds_each_difference_that_a_hand_makes() {
    let shop = Shop::open().await;
    let (world, swift) = (&shop.world, shop.swift.as_str());
    let agent = shop.agent().await;
    agent.offering_beat().await;
    let resource = world.sold(&agent, "seabird-llm", &[swift], &[("max_budget", "5")]).await;
    agent.offering_beat().await;
    let id = deployment_id(&world.owner, swift);
    // What the proxy's own file serves is not in this catalogue; that is all.
    let ours = |outcome: &Outcome| {
        outcome
            .printed
            .lines()
            .filter(|line| line.starts_with("FAIL") && !line.contains("and not in the catalogue, so nobody"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let clean = shop.check().await;
    assert_eq!(ours(&clean), Vec::<String>::new(), "{clean:?}");

    let finds = async |words: &str| {
        let found = shop.check().await;
        assert_eq!(found.code, Some(2), "{found:?}");
        assert!(ours(&found).iter().any(|line| line.contains(words)), "{words:?} is missing in {:#?}", ours(&found));
    };
    let team = resource.simple().to_string();
    let params = json!({"model": format!("openai/{swift}"), "api_base": told("UPSTREAM_URL"), "api_key": "k"});
    // A price.
    world.gateway.write("model/update", json!({"model_info": {"id": id}, "litellm_params": {"input_cost_per_token": 0.000_000_4}})).await;
    finds("an input token costs 0.0000004 at the gateway").await;
    agent.gateway_beat().await;
    // A model that was taken out.
    world.gateway.write("model/delete", json!({"id": id})).await;
    finds(&format!("model {swift} is in the catalogue and not served by the gateway")).await;
    agent.gateway_beat().await;
    // A second deployment under the same name.
    world
        .gateway
        .write(
            "model/new",
            json!({"model_name": swift, "litellm_params": params, "model_info": {"id": format!("by-hand-{}", world.owner)}}),
        )
        .await;
    finds("by our deployment and by by-hand-").await;
    world.gateway.write("model/delete", json!({"id": format!("by-hand-{}", world.owner)})).await;
    // Another public name for the same model.
    let alias = format!("alias-{}", world.owner);
    world.gateway.write("model/new", json!({"model_name": alias, "litellm_params": params, "model_info": {"id": alias}})).await;
    finds(&format!("are all openai/{swift} upstream")).await;
    world.gateway.write("model/delete", json!({"id": alias})).await;
    // The team.
    world.gateway.write("team/update", json!({"team_id": team, "models": ["kestrel-8b"]})).await;
    finds(&format!("may not call {swift}, which was ordered")).await;
    finds("may call kestrel-8b, which the catalogue does not list").await;
    world.slow_beat(&agent).await;
    // The offering.
    world.waldur.set_models(world.offering, &["kestrel-8b"]);
    finds("set the choices of `models`").await;
    agent.offering_beat().await;
    let clean = shop.check().await;
    assert_eq!(ours(&clean), Vec::<String>::new(), "{clean:?}");
    world.check().await;
    shop.close().await;
}
