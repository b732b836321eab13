//! Every call of keeping an offering may fail in every way, or be the last thing the process does: afterwards the offering is
//! what it would have been.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_agent::agent::Agent;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::World;
use llm_access_tests::crash::{Story, everywhere};

const WHOLE: &str = "inference_models:
  - {name: a, served_name: kestrel-8b, litellm_model_info: {input_cost_per_token: 2.0e-07, output_cost_per_token: 4.0e-07}}
  - {name: b, served_name: heron-70b, litellm_model_info: {input_cost_per_token: 1.0e-06, output_cost_per_token: 2.0e-06}}
  - {name: c, served_name: qwen2.5-0.5b}
  - {name: d, served_name: m4}
  - {name: e, served_name: qwen3-embedding-0-6b, runtime: tei}
";

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// An offering that was never kept.
    Fresh,
    /// One price changes and another is taken away, on a plan with resources.
    Reprice,
    /// A model has gone, and Waldur keeps its components.
    Retire,
    /// A model has gone, and Waldur lets its components go.
    Remove,
    /// A model that was retired comes back.
    Return,
}

struct Offering {
    what: What,
    profile: Profile,
}

fn without_heron() -> String {
    WHOLE.lines().filter(|line| !line.contains("heron")).map(|line| format!("{line}\n")).collect()
}

impl Offering {
    /// A model is missed for long enough, and its month is over.
    async fn let_go(&self, world: &World, agent: &Agent) {
        world.write("catalogue.yml", &without_heron());
        for _ in 0..4 {
            agent.offering_beat().await;
            world.advance(Duration::from_secs(25 * 60));
        }
        agent.offering_beat().await;
        world.set_time("2027-01-05T09:00:00Z");
    }
}

impl Story for Offering {
    async fn prepare(&self) -> World {
        let world = World::new(self.profile).await;
        world.write("catalogue.yml", WHOLE);
        let agent = world.patient().await;
        world.gateway.add_model("m4", None, None);
        world.waldur.set_price(world.offering, "spend", "0.9".parse().unwrap());
        if matches!(self.what, What::Fresh | What::Reprice | What::Retire | What::Return) {
            world.sold(&agent, "aurora", &["kestrel-8b"]).await;
        }
        if self.what != What::Fresh {
            agent.offering_beat().await;
            world.set_time("2026-12-02T09:00:00Z");
            agent.offering_beat().await;
        }
        if matches!(self.what, What::Retire | What::Remove | What::Return) {
            self.let_go(&world, &agent).await;
        }
        if self.what == What::Return {
            agent.offering_beat().await;
        }
        world
    }

    fn begin(&self, world: &World) {
        match self.what {
            What::Fresh | What::Retire | What::Remove => {}
            What::Reprice => {
                let text = WHOLE.replace("2.0e-07, output_cost_per_token: 4.0e-07", "3.0e-07, output_cost_per_token: 5.0e-07");
                let text = text.replace(", litellm_model_info: {input_cost_per_token: 1.0e-06, output_cost_per_token: 2.0e-06}", "");
                world.write("catalogue.yml", &text);
            }
            What::Return => drop(world.write("catalogue.yml", WHOLE)),
        }
    }

    async fn turn(&self, _: &World, agent: &Agent) {
        agent.offering_beat().await;
    }

    fn is_at_rest(&self, agent: &Agent) -> bool {
        !agent.conditions.holds("offering-not-kept")
    }

    fn picture(&self, world: &World) -> Vec<String> {
        let (options, resource_options) = world.waldur.forms(world.offering);
        let mut lines = vec![options.to_string(), resource_options.to_string()];
        lines
            .extend(world.waldur.components(world.offering).into_iter().map(|(kind, component)| format!("component {kind} {component:?}")));
        // A price of others may have been sent as it is, or not; what it comes to is the same.
        let future = |price: &llm_access_fixtures::waldur::PriceView| price.future.unwrap_or(price.price).normalize();
        lines.extend(
            world
                .waldur
                .prices(world.offering)
                .into_iter()
                .map(|(kind, price)| format!("price {kind} {} → {}", price.price.normalize(), future(&price))),
        );
        let notes = &world.waldur.offering_metadata(world.offering)["llm_access"]["components"];
        lines.extend(notes.as_object().unwrap().iter().map(|(kind, note)| {
            format!(
                "note {kind} {} gone {} refused {} {}",
                note["model"],
                note["gone"].is_string(),
                note["refused"].is_string(),
                note["reason"]
            )
        }));
        lines
    }
}

fn tell(name: &str, what: What, profile: Profile) {
    everywhere(name, &Offering { what, profile });
}

#[test]
fn a_fresh_offering_2024() {
    tell("fresh", What::Fresh, Profile::Y2024);
}

#[test]
fn a_fresh_offering_late_2026() {
    tell("fresh", What::Fresh, Profile::Late2026);
}

#[test]
fn new_prices_2024() {
    tell("reprice", What::Reprice, Profile::Y2024);
}

#[test]
fn new_prices_late_2026() {
    tell("reprice", What::Reprice, Profile::Late2026);
}

#[test]
fn a_component_is_retired_2024() {
    tell("retire", What::Retire, Profile::Y2024);
}

#[test]
fn a_component_is_retired_late_2026() {
    tell("retire", What::Retire, Profile::Late2026);
}

#[test]
fn a_component_is_removed() {
    tell("remove", What::Remove, Profile::Y2024);
}

#[test]
fn a_retired_component_is_used_again() {
    tell("return", What::Return, Profile::Y2024);
}
