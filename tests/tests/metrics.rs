//! What Prometheus reads from an agent in trouble is what the alert rules ask for.
//!
//! One test in a program of its own: a process has one recorder of metrics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use llm_access_agent::telemetry;
use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::litellm::Usage;
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::promql::{NeedsHistory, Scrape};
use llm_access_tests::{World, catalogue, start_time};
use serde_json::Value;
use uuid::Uuid;

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

    let page = || metrics.render();
    reports_are_counted_once(&page).await;
    what_is_not_billed_is_counted_once(&page).await;
    months_and_budgets_are_seen_and_the_series_stay_few(&page).await;
}

fn spent(world: &World, resource: Uuid, when: &str, spend: &str) {
    let id = resource.simple().to_string();
    let usage = Usage { prompt_tokens: 0, completion_tokens: 0, cached_tokens: 0, spend: spend.parse().unwrap() };
    world.gateway.add_usage(Some(&id), &format!("k-{id}"), "kestrel-8b", when.parse().unwrap(), usage);
}

/// One report is one, whether its answer was lost, the call was, or nothing.
async fn reports_are_counted_once(page: &dyn Fn() -> String) {
    let reported = || value(&page(), "llm_access_usage_reported_total").unwrap();
    for after_effect in [None, Some(false), Some(true)] {
        let world = World::new(Profile::Y2024).await;
        let agent = world.agent().await;
        let resource = world.waldur.add_resource(world.offering, &world.project, "aurora", &["kestrel-8b"], &[]);
        spent(&world, resource, "2026-11-10T08:00:00Z", "131.75");
        if let Some(after_effect) = after_effect {
            let fault = Fault::Status { status: 502, headers: Vec::new(), body: String::new(), after_effect };
            world.faults.add(Rule::new(fault).peer(Peer::Waldur).path("set_usage").times(2));
        }
        let before = reported();
        for _ in 0..5 {
            drop(agent.usage_beat().await);
            world.advance(10 * MINUTE);
        }
        assert_eq!(world.waldur.usages(resource, "2026-11")["spend"].to_string(), "131.75");
        assert_eq!(reported() - before, 1, "{after_effect:?}");
    }
}

/// A month that cannot be billed is one, however often its end is tried.
async fn what_is_not_billed_is_counted_once(page: &dyn Fn() -> String) {
    let unbilled = || value(&page(), "llm_access_unbilled_total").unwrap();
    let world = World::new(Profile::Y2024).await;
    let agent = world.agent().await;
    let resource = world.sold(&agent, "aurora", &["kestrel-8b"]).await;
    world.set_time("2026-11-30T23:58:00Z");
    let order = world.waldur.terminate(resource);
    world.beat(&agent).await;
    spent(&world, resource, "2026-11-30T23:58:30Z", "1.00");
    spent(&world, resource, "2026-12-01T00:00:10Z", "2.00");
    world.faults.add(Rule::new(Fault::status(502, "")).peer(Peer::Waldur).path("set_usage").times(3));
    let before = unbilled();
    world.run_to_rest(&agent, 90).await;
    assert_eq!(world.waldur.order_state(order), "done");
    assert_eq!(world.waldur.usages(resource, "2026-12")["spend"].to_string(), "2.00");
    assert_eq!(unbilled() - before, 1);
}

async fn months_and_budgets_are_seen_and_the_series_stay_few(page: &dyn Fn() -> String) {
    let world = World::new(Profile::Y2024).await;
    let agent = world.agent().await;
    let first = world.sold(&agent, "llm-0", &["kestrel-8b"]).await;
    world.slow_beat(&agent).await;
    agent.usage_beat().await.unwrap();
    let series = |page: &str| page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).count();
    let few = series(&page());
    let mut resources = vec![first];
    for n in 1..8 {
        resources.push(world.sold(&agent, &format!("llm-{n}"), &["kestrel-8b"]).await);
    }
    for resource in &resources {
        spent(&world, *resource, "2026-11-10T08:00:00Z", "45.00");
    }
    world.slow_beat(&agent).await;
    agent.usage_beat().await.unwrap();
    let now = page();
    assert_eq!(series(&now), few, "a series per resource would be one too many: {now}");
    // Late rows that a server of 2024 takes no more are seen for a month; so is a budget that is not reset.
    assert_eq!(value(&page(), "llm_access_usage_months_unreported"), Some(0));
    assert_eq!(value(&page(), "llm_access_budget_resets_overdue"), Some(0));
    spent(&world, first, "2026-11-30T23:59:00Z", "1.00");
    world.clock.set("2026-12-10T09:00:00Z".parse().unwrap());
    world.slow_beat(&agent).await;
    assert_eq!(value(&page(), "llm_access_budget_resets_overdue"), Some(8));
    world.set_time("2026-12-10T09:00:00Z");
    world.agent().await.usage_beat().await.unwrap();
    assert_eq!(value(&page(), "llm_access_usage_months_unreported"), Some(1));
    world.set_time("2027-01-10T09:00:00Z");
    world.agent().await.usage_beat().await.unwrap();
    assert_eq!(value(&page(), "llm_access_usage_months_unreported"), Some(0));
}
