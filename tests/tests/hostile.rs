//! Text that others chose, in what people and machines read: each event of the log stays one line, labels of metrics stay
//! words of ours, and what Waldur shows customers stays short and plain.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use llm_access_fixtures::faults::{Fault, Peer, Rule};
use llm_access_fixtures::waldur::Profile;
use llm_access_tests::program::{Program, until};
use llm_access_tests::{Store, World};
use serde_json::{Value, json};

/// What would start another line, colour a terminal, turn the text around, end a label or open a tag.
const HOSTILE: &str = "x\n2026-11-30T00:00:00Z ERROR forged=1 \r\u{1b}[2J\u{7}\u{202e}\"} 1\nllm_access_forged{a=\"b\"} 1\n<script>alert(1)</script>%s{{7*7}}\u{85}\u{2028}";

const FAST: &str = "intervals: {orders: 100ms, resources: 100ms, offering: 200ms, usage: 300ms}\nbackoff: {initial: 100ms, max: 300ms}\n\
                    terminate: {drain: 200ms, allow_short_drain: true, settle: 50ms}\n";

/// Characters that change how the rest of a line is read.
fn is_unfit(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

async fn page(port: u16, path: &str) -> Option<String> {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    http.get(format!("http://127.0.0.1:{port}/{path}")).send().await.ok()?.text().await.ok()
}

async fn lives_with_hostile_text(format: &str) {
    let world = World::in_real_time(Profile::Late2026, Store::Kube).await;
    let more = format!("{FAST}http: {{listen: \"127.0.0.1:0\"}}\nlog: {{format: {format}, level: debug}}\n");
    let config = world.config_text(&more).replace("timeout: 400ms", "timeout: 5s");
    // Every text that a customer or a peer can choose.
    let project = world.waldur.add_project(HOSTILE);
    let (fine, resource) = world.waldur.order(world.offering, &project, HOSTILE, &["kestrel-8b"], &[("max_budget", "50")]);
    world.waldur.rename_slug(resource, HOSTILE);
    world.waldur.set_forms(world.offering, json!({}), json!({}));
    let (refused, other) = world.waldur.order(world.offering, &project, HOSTILE, &[HOSTILE], &[]);
    world.waldur.rename_slug(other, HOSTILE);
    let (failing, third) = world.waldur.order(world.offering, &project, HOSTILE, &["heron-70b"], &[]);
    let said = json!({"error": {"message": HOSTILE, "type": HOSTILE, "param": HOSTILE, "code": "400"}}).to_string();
    world.faults.add(Rule::new(Fault::status(400, &said)).peer(Peer::LiteLlm).path("/team/new").body(&third.simple().to_string()));
    world.faults.add(Rule::new(Fault::status(418, HOSTILE)).peer(Peer::LiteLlm).path("/model/info").times(3));
    world.faults.add(Rule::new(Fault::status(500, HOSTILE)).peer(Peer::Waldur).path("set_endpoints").times(2));
    let denied = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": HOSTILE, "reason": HOSTILE, "code": 403});
    world.faults.add(Rule::new(Fault::status(403, &denied.to_string())).peer(Peer::Kube).method("POST").path("llm-keys").times(2));

    let mut agent = Program::start(env!("CARGO_BIN_EXE_agent-under-test"), &world, "agent", &config, &[]);
    let states = || [fine, refused, failing].map(|order| world.waldur.order_state(order));
    until("each order ended as it should", &[&agent], || states() == ["done", "rejected", "erred"]).await;
    let port = agent.port().await;
    let (metrics, status) = (page(port, "metrics").await.unwrap(), page(port, "status").await.unwrap());
    agent.signal("KILL").await;
    agent.end().await;

    let text = agent.log();
    assert!(text.lines().count() > 20 && text.contains("forged=1"), "the text never came into the log:{agent}");
    for line in text.lines() {
        assert!(!line.chars().any(is_unfit), "{format}: {line:?}");
        match format {
            "json" => assert!(serde_json::from_str::<Value>(line).unwrap()["level"].is_string(), "{line}"),
            _ => assert!(line.starts_with("20") && line.contains("Z ") && !line.starts_with("2026-11-30T00:00:00Z"), "{line:?}"),
        }
    }
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let fit = |c: char| c.is_ascii_alphanumeric() || " _{}=\",.:/+-".contains(c);
        assert!(line.chars().all(fit) && !line.contains("forged") && !line.contains("script"), "{line:?}");
    }
    assert!(serde_json::from_str::<Value>(&status).is_ok() && !status.chars().any(char::is_control), "{status:?}");
    for told in [world.waldur.rejection_comment(refused), world.waldur.error_of(failing)] {
        assert!(!told.is_empty() && told.chars().count() <= 500 && !told.chars().any(is_unfit), "{told:?}");
    }
    assert!(
        !world.waldur.error_of(failing).contains("forged"),
        "customers are told nothing that a peer said: {}",
        world.waldur.error_of(failing)
    );
    world.faults.clear();
}

#[tokio::test]
async fn hostile_text_stays_one_line_of_the_log() {
    lives_with_hostile_text("text").await;
}

#[tokio::test]
async fn hostile_text_stays_one_object_of_the_log() {
    lives_with_hostile_text("json").await;
}
