//! What belongs to one pass or one order can be told from everything else: in the log by ids, and in a build with the feature
//! `otel` by spans that are sent to a collector, with which nothing secret leaves and nothing that customers chose.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::Instant;

use llm_access_fixtures::waldur::Profile;
use llm_access_tests::program::{PATIENCE, Program, pause};
use llm_access_tests::{Store, World};
use serde_json::Value;
use uuid::Uuid;

/// Runs the agent until an order is done and it was asked to end, and gives its log.
async fn run_until_done(world: &World, order: Uuid, more: &str) -> String {
    let more = format!("{more}intervals: {{orders: 100ms, resources: 100ms, offering: 100ms, usage: 100ms}}\n");
    let config = world.config_text(&more).replace("timeout: 400ms", "timeout: 30s");
    let mut agent = Program::start(env!("CARGO_BIN_EXE_agent-under-test"), world, "agent", &config, &[]);
    let began = Instant::now();
    while world.waldur.order_state(order) != "done" {
        assert!(began.elapsed() < PATIENCE && agent.runs(), "the order is {}: {}", world.waldur.order_state(order), agent.log());
        pause(std::time::Duration::from_millis(50)).await;
    }
    agent.signal("TERM").await;
    assert!(agent.end().await.success(), "{}", agent.log());
    agent.log()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_line_of_a_pass_has_its_id_and_every_line_of_an_order_that_of_the_order() {
    let world = World::in_real_time(Profile::Late2026, Store::Kube).await;
    let (order, resource) = world.order("aurora", &["kestrel-8b"]);
    let log = run_until_done(&world, order, "log: {format: json}\n").await;
    let (mut passes, mut of_order) = (BTreeMap::<String, String>::new(), 0);
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let spans = line["spans"].as_array().cloned().unwrap_or_default();
        let span = |name: &str| spans.iter().find(|span| span["name"] == name);
        if ["starts", "stop", "event"].iter().any(|word| line["message"].as_str().unwrap().contains(word)) {
            continue;
        }
        let pass = span("pass").unwrap_or_else(|| panic!("of no pass: {line}"));
        let id = pass["id"].as_str().unwrap();
        assert!(id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
        let of = pass["loop"].as_str().unwrap().to_owned();
        assert_eq!(passes.entry(id.to_owned()).or_insert_with(|| of.clone()), &of, "one id for two passes: {line}");
        if let Some(span) = span("order") {
            assert_eq!(span["order"], order.simple().to_string().as_str());
            assert_eq!(span["resource"], resource.simple().to_string().as_str());
            of_order += 1;
        }
    }
    assert!(passes.values().any(|of| of == "orders") && passes.values().any(|of| of == "offering"), "{passes:?}");
    assert!(of_order > 5, "{log}");
}

#[cfg(feature = "otel")]
mod spans {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::body::Bytes;
    use axum::extract::State;
    use axum::http::HeaderMap;
    use axum::routing::post;
    use llm_access_tests::eventful::HOSTILE;

    use super::{Profile, Store, World, run_until_done};

    /// What a collector was sent: the content type and the body, both as they came.
    type Sent = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

    async fn collector() -> (String, Sent) {
        let sent = Sent::default();
        let take = |State(sent): State<Sent>, headers: HeaderMap, body: Bytes| async move {
            let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default().to_owned();
            sent.lock().unwrap().push((kind, body.to_vec()));
        };
        let router = Router::new().route("/v1/traces", post(take)).with_state(sent.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        (url, sent)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn passes_and_orders_are_traced_with_the_ids_of_the_log() {
        let world = World::in_real_time(Profile::Late2026, Store::Kube).await;
        let (url, sent) = collector().await;
        let (order, resource) = world.order(HOSTILE[0], &["kestrel-8b"]);
        let more = format!("traces: {{endpoint: {url}}}\nlog: {{level: error}}\n");
        // What is left is sent at the end.
        run_until_done(&world, order, &more).await;

        let sent = sent.lock().unwrap();
        assert!(!sent.is_empty() && sent.iter().all(|(kind, _)| kind == "application/x-protobuf"), "{:?}", sent.len());
        let all: Vec<u8> = sent.iter().flat_map(|(_, body)| body.iter().copied()).collect();
        let has = |text: &str| all.windows(text.len()).any(|window| window == text.as_bytes());
        for text in ["llm-access-agent", "icarus", "pass", "orders", "resources", "order", "Create"] {
            assert!(has(text), "{text}");
        }
        assert!(has(&order.simple().to_string()) && has(&resource.simple().to_string()));
        for slot in ["chat", "project"] {
            assert!(!has(&world.key(resource, slot)), "{slot}");
        }
        for text in
            [world.waldur.agent_token(), world.gateway.master_key(), HOSTILE[0].to_owned(), "order done".to_owned(), "sk-".to_owned()]
        {
            assert!(!has(&text), "{text}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_collector_that_is_away_holds_nothing_up() {
        let world = World::in_real_time(Profile::Late2026, Store::Kube).await;
        let (order, _) = world.order("aurora", &["kestrel-8b"]);
        let log = run_until_done(&world, order, "traces: {endpoint: 'http://127.0.0.1:9/v1/traces'}\n").await;
        assert!(log.contains("order done"), "{log}");
    }
}
