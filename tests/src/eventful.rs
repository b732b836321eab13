//! A world in which everything that a person may want to look at is there at once: orders that wait for peers and for people,
//! budgets in every state, components of a model that has gone, conditions, and customers who choose their names with malice.

use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use rust_decimal::Decimal;
use uuid::Uuid;

use crate::{Store, World, catalogue};

/// Names that a page, a terminal or a log could stumble over.
pub const HOSTILE: [&str; 4] = [
    "<script>alert('owned')</script>",
    "\"><img src=x onerror=alert(1)>&amp;",
    "invoice\u{202e}fdp.exe\u{200b}\r\nSet-Cookie: x=1",
    "Ωκεανός 海 🐦 &<>'\"",
];

/// What happened.
pub struct Eventful {
    /// The world.
    pub world: World,
    /// Its agent.
    pub agent: Agent,
    /// An order that the gateway keeps from being carried out.
    pub failing: Uuid,
    /// A termination that waits for somebody's approval.
    pub by_person: Uuid,
    /// Resources, by the share of their budget that is spent.
    pub resources: Vec<(u32, Uuid)>,
}

impl Eventful {
    /// Lets it all happen. `more` goes to the end of the configuration.
    pub async fn start(more: &str) -> Self {
        let world = World::with_store(Profile::Y2024, Store::Kube).await;
        world.set_time("2026-10-10T09:00:00Z");
        // The first lines belong to the offering, which stands last in the text.
        let agent = world.patient_with(&world.config_text(&format!("    approval: {{terminate: manual}}\n{more}"))).await;
        for which in ["orders", "resources", "offering", "usage"] {
            agent.progress.expect(which, Duration::from_secs(60));
        }
        agent.offering_beat().await;
        let mut resources = Vec::new();
        let long = "Long ".repeat(60);
        let names = ["Seabird Acoustics", "Tide tables", "Glacier archive", HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[3], &long];
        for (name, share) in names.iter().zip([42, 87, 103, 99, 5, 0, 61, 12]) {
            resources.push((share, world.sold(&agent, name, &["kestrel-8b"]).await));
        }
        agent.usage_beat().await.unwrap();

        // A model goes, and its months pass.
        world.write("catalogue.yml", &catalogue(&["kestrel-8b", "qwen2.5-0.5b"]));
        for _ in 0..4 {
            agent.offering_beat().await;
            world.slow_beat(&agent).await;
            world.advance(Duration::from_secs(1500));
        }
        world.set_time("2026-11-10T09:00:00Z");
        world.slow_beat(&agent).await;
        agent.usage_beat().await.unwrap();
        agent.offering_beat().await;

        for (share, resource) in &resources {
            world.gateway.set_spend(&resource.simple().to_string(), Decimal::new(i64::from(*share) * 50, 2));
        }
        world.waldur.pause(resources[6].1, true);
        let by_person = world.waldur.terminate(resources[2].1);
        world.advance(Duration::from_secs(754));
        // An order is refused until it errs, is taken up again, and meets a gateway that is busy.
        let team = |status, body: &str| Rule::new(Fault::status(status, body)).peer(Peer::LiteLlm).path("/key/generate");
        let refusal = world.faults.add(team(400, "{\"error\": \"no\"}"));
        let (failing, _) = world.order(HOSTILE[0], &["kestrel-8b"]);
        for _ in 0..2 {
            world.beat(&agent).await;
            world.advance(Duration::from_secs(20));
        }
        assert_eq!(world.waldur.order_state(failing), "erred");
        world.faults.remove(refusal);
        world.faults.add(team(500, "{\"error\": \"the <b>queue</b> is full\"}"));
        for _ in 0..2 {
            world.slow_beat(&agent).await;
            world.beat(&agent).await;
        }
        world.advance(Duration::from_secs(4));
        Self { world, agent, failing, by_person, resources }
    }
}
