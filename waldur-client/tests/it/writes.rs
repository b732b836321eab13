//! What the client sends, held against what real servers accepted.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use secrecy::SecretString;
use serde_json::{Value, json};
use waldur_client::{BillingType, Client, ComponentChange, Endpoint, Limits, NewComponent, ReportSection, Result, Usage, UsageReport};

use crate::recordings::{OFFERING, ORDER, PLAN, RESOURCE, Recording};
use crate::server::{Reply, Seen, Server, uuid};

/// Makes a call against a recording; gives what was sent.
async fn replay<T>(recording: &str, call: impl AsyncFnOnce(Client) -> Result<T>) -> (Recording, Seen) {
    let recording = Recording::load(recording);
    let server = recording.serve().await;
    call(server.client()).await.unwrap_or_else(|error| panic!("{}: {error}", recording.name));
    let seen = server.seen();
    assert_eq!(seen.len(), 1, "{}", recording.name);
    (recording, seen[0].clone())
}

/// Like `replay`, for calls whose recorded body must be ours exactly.
async fn replay_exactly(recording: &str, call: impl AsyncFnOnce(Client) -> Result<()>) {
    let (recording, seen) = replay(recording, call).await;
    assert_eq!(seen.json(), recording.request, "{}", recording.name);
    assert_eq!(seen.header("content-type"), "application/json");
}

fn dec(text: &str) -> Decimal {
    text.parse().unwrap()
}

#[tokio::test]
async fn orders() {
    for body in [
        replay("c016", async |c| c.approve_order(uuid(ORDER)).await.map(drop)).await,
        replay("c025", async |c| c.set_order_done(uuid(ORDER)).await).await,
        replay("e004", async |c| c.set_order_executing(uuid("75763a27ae4448739045a77fa4f770c6")).await).await,
    ] {
        assert_eq!(body.1.json(), json!({}));
    }
    let (_, seen) = replay("i015", async |c| c.reject_order(uuid("3830cb20f97549528a299baae1272bfe"), "No such model").await).await;
    assert_eq!(seen.json(), json!({"provider_rejection_comment": "No such model"}));
    replay_exactly("e007", async |c| c.set_order_erred(uuid("75763a27ae4448739045a77fa4f770c6"), "gateway 503", "Traceback: x").await)
        .await;
}

#[tokio::test]
async fn approving_tells_whether_the_server_said_anything() {
    let cases = [
        (Recording::load("c016").reply(), false),
        (Reply::new(200, " \n"), false),
        (Reply::new(204, ""), false),
        (Reply::json(200, json!({"detail": "Order has been approved."})), true),
        (Reply::new(200, "x".repeat(1 << 20)), true),
    ];
    for (reply, answered) in cases {
        let server = Server::always(reply.clone()).await;
        let result = server.client().approve_order(uuid(ORDER)).await;
        assert_eq!(result.unwrap(), answered, "{answered}");
    }
}

#[tokio::test]
async fn an_erred_order_always_carries_both_texts() {
    let server = Server::always(Reply::new(200, "")).await;
    server.client().set_order_erred(uuid(ORDER), "", "").await.unwrap();
    assert_eq!(server.seen()[0].json(), json!({"error_message": "", "error_traceback": ""}));
}

#[tokio::test]
async fn resources() {
    for recording in ["c022", "c023"] {
        replay_exactly(recording, async |c| c.set_backend_id(uuid(RESOURCE), "team-7f3a").await).await;
    }
    replay_exactly("c024", async |c| {
        let metadata = json!({"team_id": "team-7f3a", "key_alias": "seabird"});
        c.set_backend_metadata(uuid(RESOURCE), metadata.as_object().unwrap()).await
    })
    .await;
    replay_exactly("d019", async |c| {
        let section = ReportSection { header: "Models".into(), body: "kestrel-8b: 12.5k in".into() };
        c.submit_report(uuid(RESOURCE), &[section]).await
    })
    .await;
    replay("i019", async |c| c.unlink_resource(uuid("1f0e9a1838004c9fa07d80517179f16e")).await).await;
}

#[tokio::test]
async fn calls_of_later_servers() {
    let server = Server::always(Reply::new(200, "")).await;
    let client = server.client();
    let limits: Limits = [("spend".into(), dec("80.00")), ("tpm_limit".into(), dec("0.5"))].into();
    let endpoint = Endpoint { name: "OpenAI API".into(), url: "https://llm.example.org/v1".into() };
    let resource = uuid(RESOURCE);
    client.set_endpoints(resource, &[endpoint]).await.unwrap();
    client.set_limits(resource, &limits).await.unwrap();
    client.set_resource_ok(resource).await.unwrap();
    client.set_resource_erred(resource, "m", "").await.unwrap();
    client.refresh_last_sync(resource).await.unwrap();
    client.retry_order(uuid(ORDER)).await.unwrap();
    let key = SecretString::from("sk-abcdefgh");
    client.report_api_key_created(resource, "r-1", &key).await.unwrap();

    let sent: Vec<(String, String)> =
        server.seen().into_iter().map(|seen| (seen.path.trim_start_matches("/api/marketplace-").to_owned(), seen.body)).collect();
    let resource = format!("provider-resources/{RESOURCE}");
    let expected = [
        (format!("{resource}/set_endpoints/"), r#"{"endpoints":[{"name":"OpenAI API","url":"https://llm.example.org/v1"}]}"#.to_owned()),
        // A whole amount is an integer: servers before 2026 take no other.
        (format!("{resource}/set_limits/"), r#"{"limits":{"spend":80,"tpm_limit":0.5}}"#.to_owned()),
        (format!("{resource}/set_as_ok/"), "{}".to_owned()),
        (format!("{resource}/set_as_erred/"), r#"{"error_message":"m","error_traceback":""}"#.to_owned()),
        (format!("{resource}/refresh_last_sync/"), "{}".to_owned()),
        (format!("orders/{ORDER}/retry/"), "{}".to_owned()),
        (
            "resource-api-keys/report_created/".to_owned(),
            format!(r#"{{"resource":"{RESOURCE}","client_id":"r-1","api_key":"sk-abcdefgh"}}"#),
        ),
    ];
    for (sent, expected) in sent.iter().zip(&expected) {
        assert_eq!(sent.0, expected.0);
        let (sent_body, expected_body): (Value, Value) =
            (serde_json::from_str(&sent.1).unwrap(), serde_json::from_str(&expected.1).unwrap());
        assert_eq!(sent_body, expected_body, "{}", sent.0);
    }
    assert_eq!(sent.len(), expected.len());
    assert!(sent[1].1.contains("\"spend\":80,"), "{}", sent[1].1);
}

#[tokio::test]
async fn usage() {
    let usage = |kind: &str, amount: &str| Usage { kind: kind.into(), amount: dec(amount) };
    replay_exactly("d001", async |c| {
        let usages = [usage("kestrel-8b-input", "12.5"), usage("kestrel-8b-output", "3.200"), usage("spend", "0.015")];
        c.set_usage(uuid(RESOURCE), &usages, None).await
    })
    .await;

    let server = Server::always(Reply::new(201, "")).await;
    let date = "2026-11-30T23:59:59Z".parse().unwrap();
    server.client().set_usage(uuid(RESOURCE), &[usage("a", "-0.001")], Some(date)).await.unwrap();
    assert_eq!(
        server.seen()[0].json(),
        json!({"resource": RESOURCE, "usages": [{"type": "a", "amount": "0.00"}], "date": "2026-11-30T23:59:59Z"})
    );
    let noted = UsageReport { usages: &[usage("a", "1")], descriptions: &["usage of 2026-11".to_owned()], ..UsageReport::default() };
    server.client().report_usage(uuid(RESOURCE), &noted).await.unwrap();
    assert_eq!(
        server.seen()[1].json(),
        json!({"resource": RESOURCE, "usages": [{"type": "a", "amount": "1.00", "description": "usage of 2026-11"}]})
    );
}

#[tokio::test]
async fn offering() {
    let offering = uuid(OFFERING);
    replay_exactly("b007", async |c| {
        let component = NewComponent {
            kind: "osprey-3b-input".into(),
            details: ComponentChange {
                name: Some("osprey-3b input tokens".into()),
                measured_unit: Some("1k tokens".into()),
                billing_type: Some(BillingType::Usage),
                ..ComponentChange::default()
            },
        };
        c.create_component(offering, &component).await
    })
    .await;
    replay_exactly("b013", async |c| {
        let change = ComponentChange { name: Some("osprey-3b input (renamed)".into()), ..ComponentChange::default() };
        c.update_component(offering, uuid("959c8536173643989186de360cf6758e"), &change).await
    })
    .await;
    replay_exactly("b022", async |c| c.remove_component(offering, uuid("959c8536173643989186de360cf6758e")).await).await;
    for recording in ["b025", "b026"] {
        let body = Recording::load(recording).request;
        replay_exactly(recording, async |c| match recording {
            "b025" => c.set_offering_options(offering, &body["options"]).await,
            _ => c.set_resource_options(offering, &body["resource_options"]).await,
        })
        .await;
    }
    replay_exactly("k012", async |c| {
        let metadata = json!({"retired_components": ["unused-input"]});
        c.set_offering_metadata(offering, metadata.as_object().unwrap()).await
    })
    .await;
}

#[tokio::test]
async fn prices_are_written_with_every_digit() {
    replay_exactly("b016", async |c| {
        let prices = BTreeMap::from([("osprey-3b-input".to_owned(), dec("0.0001")), ("kestrel-8b-input".to_owned(), dec("0.0003000000"))]);
        c.set_prices(uuid(PLAN), &prices).await
    })
    .await;
    let (_, seen) = replay("l003", async |c| {
        let prices = BTreeMap::from([
            ("a".to_owned(), dec("0.0000000001")),
            ("b".to_owned(), dec("0.0")),
            ("c".to_owned(), dec("123456789012.0123456789")),
        ]);
        c.set_prices(uuid(PLAN), &prices).await
    })
    .await;
    assert_eq!(seen.body, r#"{"prices":{"a":0.0000000001,"b":0,"c":123456789012.0123456789}}"#);
}

#[tokio::test]
async fn success_is_the_status_and_needs_no_body() {
    for status in [200, 201, 202, 204] {
        for body in ["", "null", "{}", "[1]", "plain text", "<html>", "{\"cut"] {
            let body = if status == 204 { "" } else { body };
            let server = Server::always(Reply::new(status, body)).await;
            let result = server.client().approve_order(uuid(ORDER)).await;
            assert!(result.is_ok(), "{status} {body:?}: {result:?}");
        }
    }
}

#[tokio::test]
async fn other_statuses_below_400_are_no_success() {
    for status in [203, 205, 206, 207, 300, 304] {
        let server = Server::always(Reply::new(status, "")).await;
        let error = server.client().approve_order(uuid(ORDER)).await.unwrap_err();
        assert_eq!(error.class(), waldur_client::Class::Transient, "{status}");
        assert_eq!(error.status(), Some(status));
        assert_eq!(error.may_have_happened(), status < 300, "{status}");
        assert!(server.client().me().await.is_err(), "{status}");
    }
}
