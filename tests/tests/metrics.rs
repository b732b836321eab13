//! What Prometheus reads from an agent in trouble is what the alert rules ask for.
//!
//! One test in a program of its own: a process has one recorder of metrics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_agent::telemetry;
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::promql::{NeedsHistory, Scrape};
use llm_access_tests::{World, catalogue, start_time};
use serde_json::Value;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The alerts whose expressions hold on this page; those that look back in time are left out.
fn alerts(page: &str, world: &World) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/chart/files/alerts.yaml");
    let rules: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let scrape = Scrape::read(page, world.clock.now().as_second(), &[("namespace", "n"), ("job", "a"), ("instance", "1")]);
    let (mut held, mut left_out) = (Vec::new(), Vec::new());
    for rule in rules["groups"][0]["rules"].as_array().unwrap() {
        let name = rule["alert"].as_str().unwrap().to_owned();
        match scrape.alerts(rule["expr"].as_str().unwrap()) {
            Ok(series) if series.is_empty() => {}
            Ok(_) => held.push(name),
            Err(NeedsHistory) => left_out.push(name),
        }
    }
    assert_eq!(left_out, ["LlmAccessAgentAbsent", "LlmAccessLeaseFlapping", "LlmAccessOrderErred", "LlmAccessUsageUnbilled"]);
    held
}

/// The value of a series, written as Prometheus reads it.
fn value(page: &str, series: &str) -> Option<i64> {
    page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn a_peer_that_is_down_an_order_that_waits_and_a_stale_component_are_seen() {
    let metrics = telemetry::metrics().unwrap();
    // Counters are there before anything happened, so that the first event is an increase.
    let page = metrics.render();
    for name in ["llm_access_orders_erred_total", "llm_access_unbilled_total"] {
        assert_eq!(value(&page, name), Some(0), "{page}");
        assert!(page.contains(&format!("# HELP {name} ")) && page.contains(&format!("# TYPE {name} counter")), "{page}");
    }

    let world = World::new(Profile::Late2026).await;
    let models = ["kestrel-8b", "heron-70b", "qwen2.5-0.5b"];
    let agent = world.agent().await;
    let offering = world.offering.simple().to_string();
    let of_offering = |name: &str| format!("{name}{{offering=\"{offering}\"}}");
    world.beat(&agent).await;
    let page = metrics.render();
    let oldest = of_offering("llm_access_oldest_open_order_timestamp_seconds");
    assert_eq!(value(&page, &oldest), Some(0), "no order is open: {page}");
    let down = "llm_access_condition{condition=\"gateway-unreachable\"}";
    assert!(matches!(value(&page, down), None | Some(0)), "{page}");
    assert_eq!(alerts(&page, &world), Vec::<String>::new());

    // LlmAccessPeerDown and LlmAccessOrderWaiting.
    let elsewhere =
        Fault::Replace { status: 301, headers: vec![("Location".into(), "https://llm.example.org/".into())], body: String::new() };
    let outage = world.faults.add(Rule::new(elsewhere).peer(Peer::LiteLlm));
    let (order, _) = world.order("seabird-llm", &["kestrel-8b"]);
    for _ in 0..6 {
        world.beat(&agent).await;
        world.advance(10 * MINUTE);
    }
    let page = metrics.render();
    assert_eq!(value(&page, down), Some(1), "{page}");
    assert_eq!(value(&page, &of_offering("llm_access_open_orders")), Some(1), "{page}");
    let made = value(&page, &oldest).unwrap();
    let now = start_time().as_second() + 3600;
    assert!(now - made > 1800 && now - made <= 3600, "{made} at {now}");
    assert_eq!(alerts(&page, &world), ["LlmAccessPeerDown", "LlmAccessOrderWaiting"]);
    // A replica that stands by remembers the same, and raises nothing.
    assert_eq!(alerts(&format!("{page}\nllm_access_leading 0\n"), &world), ["LlmAccessNobodyLeads"]);

    // Both end when the gateway is back.
    world.faults.remove(outage);
    world.run_to_rest(&agent, 60).await;
    assert_eq!(world.waldur.order_state(order), "done");
    world.beat(&agent).await;
    let page = metrics.render();
    assert_eq!(value(&page, down), Some(0), "{page}");
    assert_eq!(value(&page, &oldest), Some(0), "{page}");
    assert_eq!(alerts(&page, &world), Vec::<String>::new());

    // LlmAccessStaleComponentBlocked: a model leaves, and the offering has a resource.
    agent.offering_beat().await;
    assert_eq!(value(&metrics.render(), &of_offering("llm_access_components_retired")), Some(0));
    world.write("catalogue.yml", &catalogue(&models[..2]));
    for _ in 0..12 {
        world.advance(3 * DAY);
        world.beat(&agent).await;
        world.slow_beat(&agent).await;
        agent.offering_beat().await;
    }
    let page = metrics.render();
    assert!(value(&page, &of_offering("llm_access_components_retired")) >= Some(1), "{page}");
    assert_eq!(value(&page, "llm_access_orders_erred_total"), Some(0), "{page}");
    // The gateway serves the model for as long as nobody takes it out there, which is said as well.
    assert_eq!(alerts(&page, &world), ["LlmAccessStaleComponentBlocked", "LlmAccessConditionHolds"]);
}
