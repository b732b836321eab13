//! The client against connections and answers that go wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Gateway, OUR_KEY, Reply, client, settings};
use litellm_client::{Class, Client, Error, ErrorKind, Models, NewKey, NewTeam, Settings};
use secrecy::SecretString;
use serde_json::Map;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

fn new_team() -> NewTeam {
    NewTeam {
        team_id: "t".to_owned(),
        team_alias: "t".to_owned(),
        models: Models::none(),
        max_budget: None,
        budget_duration: None,
        tpm_limit: None,
        rpm_limit: None,
        blocked: false,
        metadata: Map::new(),
    }
}

fn new_key(key: &str) -> NewKey {
    NewKey { team_id: "t".to_owned(), alias: "t-1".to_owned(), key: Some(SecretString::from(key)), metadata: Map::new(), blocked: false }
}

/// A peer that reads a request, writes these bytes and then closes, or waits when `hold` is set.
async fn raw(answer: &'static [u8], hold: bool) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            counter.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut buffer = [0; 8192];
                let _ = socket.read(&mut buffer).await;
                let _ = socket.write_all(answer).await;
                if hold {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    (address, count)
}

fn interrupted(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Interrupted { .. })
}

#[tokio::test]
async fn no_connection_is_nothing_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = client(&address).create_team(&new_team()).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Unreachable { .. }), "{error}");
    assert_eq!(error.class(), Class::Transient);
    assert!(!error.may_have_happened());
    assert!(error.to_string().contains("refused"), "the cause is told: {error}");
}

#[tokio::test]
async fn a_closed_connection_may_have_worked_and_is_not_tried_again() {
    let (address, count) = raw(b"", false).await;
    let error = client(&address).create_team(&new_team()).await.unwrap_err();
    assert!(interrupted(&error), "{error}");
    assert!(error.may_have_happened());
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_cut_body_is_no_answer() {
    let cut = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{\"teams\":[],\"total\":0,\"page\":1}";
    let (address, _) = raw(cut, false).await;
    let error = client(&address).team("t").await.unwrap_err();
    assert!(interrupted(&error), "{error}");
    // A whole message that holds half a value.
    for body in [r#"{"teams":[],"total":0,"#, r#"{"teams":[],"total":0,"page":1}}"#] {
        let gateway = Gateway::always(Reply::json(200, body)).await;
        let error = gateway.client().team("t").await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Decode { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_cut_error_keeps_its_status() {
    let cut = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 500\r\n\r\n{\"error\":";
    let (address, _) = raw(cut, false).await;
    let error = client(&address).team("t").await.unwrap_err();
    assert_eq!((error.status(), error.class()), (Some(503), Class::Transient));
}

#[tokio::test]
async fn silence_ends_with_the_time_out() {
    let headers = b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"teams\"";
    for answer in [&b""[..], &headers[..]] {
        let (address, _) = raw(answer, true).await;
        let fast = Settings { timeout: Duration::from_millis(100), ..settings(&address) };
        let error = Client::new(fast).unwrap().create_team(&new_team()).await.unwrap_err();
        assert!(interrupted(&error), "{error}");
        assert!(error.may_have_happened());
        assert!(error.to_string().contains("timed out"), "{error}");
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let elsewhere = Gateway::always(Reply::json(200, "{}")).await;
    let target = format!("{}/team/new?key=sk-MARKER-url", elsewhere.address);
    for status in [301, 302, 303, 307, 308] {
        let gateway = Gateway::always(Reply::json(status, "").header("location", &target)).await;
        let error = gateway.client().create_team(&new_team()).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Redirected { .. }), "{error}");
        assert_eq!(error.class(), Class::Transient);
        assert!(!error.may_have_happened());
        assert!(error.to_string().contains(&elsewhere.address), "{error}");
        assert!(!error.to_string().contains("MARKER"), "{error}");
    }
    assert!(elsewhere.seen().is_empty());
    let gateway = Gateway::recorded("trailing").await;
    assert!(matches!(gateway.client().create_team(&new_team()).await.unwrap_err().kind, ErrorKind::Redirected { .. }));
}

#[tokio::test]
async fn success_is_a_class_and_a_body_is_not_needed_for_a_write() {
    let bodies = [Reply::json(200, ""), Reply::json(201, "null"), Reply::json(202, "{}"), Reply::text(203, "done"), Reply::json(204, "")];
    for reply in bodies {
        let status = reply.status;
        let gateway = Gateway::always(reply).await;
        let client = gateway.client();
        client.create_team(&new_team()).await.unwrap();
        client.delete_team("t").await.unwrap();
        let key = client.generate_key(&new_key("sk-own-0123456789abcdef")).await.unwrap();
        assert_eq!(key.hash.len(), 64, "{status}");
        // The gateway's choice of a key is lost without a body.
        let none = NewKey { key: None, ..new_key("") };
        let error = client.generate_key(&none).await.unwrap_err();
        assert!(error.may_have_happened(), "{status}: {error}");
        // So is a list.
        client.team("t").await.unwrap_err();
    }
    for status in [206, 207, 299] {
        let gateway = Gateway::always(Reply::json(status, "{}")).await;
        let result = gateway.client().create_team(&new_team()).await;
        assert_eq!(result.is_ok(), status == 299, "{status}: {result:?}");
        if let Err(error) = result {
            assert_eq!(error.class(), Class::Transient);
            assert!(error.may_have_happened());
        }
    }
}

#[tokio::test]
async fn a_credential_is_read_before_every_request() {
    let gateway = Gateway::recorded("team-delete").await;
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let rotating = Settings {
        key: Arc::new(move || Ok(SecretString::from(format!("sk-number-{}", counter.fetch_add(1, Ordering::SeqCst))))),
        ..settings(&gateway.address)
    };
    let client = Client::new(rotating).unwrap();
    client.delete_team("a").await.unwrap();
    client.delete_team("b").await.unwrap();
    let headers: Vec<_> = gateway.seen().into_iter().map(|seen| seen.authorization.unwrap()).collect();
    assert_eq!(headers, ["Bearer sk-number-0", "Bearer sk-number-1"]);
}

#[tokio::test]
async fn a_credential_that_cannot_be_used_is_named_and_not_shown() {
    let gateway = Gateway::recorded("team-delete").await;
    type Source = fn() -> Result<SecretString, String>;
    let sources: [Source; 3] = [
        || Err("cannot read /run/secrets/key: no such file".to_owned()),
        || Ok(SecretString::from("")),
        || Ok(SecretString::from("sk-MARKER\n")),
    ];
    for source in sources {
        let broken = Settings { key: Arc::new(source), ..settings(&gateway.address) };
        let error = Client::new(broken).unwrap().delete_team("t").await.unwrap_err();
        assert_eq!(error.class(), Class::Credential);
        assert!(!error.may_have_happened());
        assert!(!error.to_string().contains("MARKER"), "{error}");
    }
    assert!(gateway.seen().is_empty());
}

#[tokio::test]
async fn echoed_secrets_are_in_no_error() {
    let own = "sk-MARKER-own-0123456789";
    let body =
        format!(r#"{{"error":{{"message":"bad {OUR_KEY} and {own} and sk-MARKER-other-1\nnext","type":"{OUR_KEY}","param":"{own}"}}}}"#);
    let foreign = format!("<html>{OUR_KEY} {own}</html>");
    let wrong_type = format!(r#"{{"keys":"{OUR_KEY}","total_count":"{own}","current_page":1}}"#);
    let wrong_key = r#"{"key":"sk-MARKER-third-0123456789"}"#.to_owned();
    for reply in [Reply::json(400, body.as_str()), Reply::text(502, &foreign), Reply::json(200, wrong_type), Reply::json(200, wrong_key)] {
        let gateway = Gateway::always(reply).await;
        let client = gateway.client();
        let mut texts = Vec::new();
        for error in [client.generate_key(&new_key(own)).await.err(), client.keys().await.err()].into_iter().flatten() {
            texts.push(format!("{error} {error:?}"));
        }
        assert!(!texts.is_empty());
        for text in texts {
            assert!(!text.contains("MARKER"), "{text}");
        }
        assert!(!format!("{client:?}").contains("MARKER"));
    }
}

#[tokio::test]
async fn error_texts_are_short() {
    let long = "x".repeat(100_000);
    for reply in [Reply::json(400, format!(r#"{{"detail":"{long}"}}"#)), Reply::text(502, &long)] {
        let gateway = Gateway::always(reply).await;
        let error = gateway.client().team("t").await.unwrap_err();
        assert!(error.to_string().len() < 700, "{}", error.to_string().len());
    }
}

#[tokio::test]
async fn the_wait_the_gateway_asks_for_is_kept() {
    let reply = Reply::json(429, r#"{"error":{"message":"slow down","type":"throttling_error"}}"#).header("retry-after", "60");
    let gateway = Gateway::always(reply).await;
    let error = gateway.client().team("t").await.unwrap_err();
    assert_eq!((error.class(), error.retry_after()), (Class::Transient, Some(Duration::from_secs(60))));
    let gateway = Gateway::always(Reply::text(503, "").header("retry-after", "5")).await;
    let error = gateway.client().team("t").await.unwrap_err();
    assert_eq!((error.class(), error.retry_after()), (Class::Transient, Some(Duration::from_secs(5))));
}

#[tokio::test]
async fn a_prefix_in_the_address_stays() {
    let gateway = Gateway::recorded("team-delete").await;
    for prefix in ["/litellm", "/litellm/"] {
        client(&format!("{}{prefix}", gateway.address)).delete_team("t").await.unwrap();
    }
    assert!(gateway.seen().iter().all(|seen| seen.path == "/litellm/team/delete"));
}

/// A list of `names` in pages, as the gateway would give it with this total.
fn team_page(names: &[String], page: usize, total: usize) -> Reply {
    let rows: Vec<_> = names.iter().skip((page - 1) * 100).take(100).map(|id| serde_json::json!({"team_id": id})).collect();
    Reply::json(200, serde_json::json!({"teams": rows, "total": total, "page": page, "page_size": 100}).to_string())
}

fn names(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("team-{n:04}")).collect()
}

fn page_of(seen: &common::Seen) -> usize {
    seen.param("page").unwrap().parse().unwrap()
}

#[tokio::test]
async fn all_pages_are_read() {
    for count in [0, 1, 99, 100, 101, 250] {
        let gateway = Gateway::start(move |seen| team_page(&names(0..count), page_of(seen), count)).await;
        let teams = gateway.client().teams().await.unwrap();
        assert_eq!(teams.iter().map(|t| t.team_id.clone()).collect::<Vec<_>>(), names(0..count), "{count}");
        assert_eq!(gateway.seen().len(), count.div_ceil(100).max(1), "{count}");
        assert!(gateway.seen().iter().all(|s| s.param("sort_by").as_deref() == Some("team_id")));
    }
}

#[tokio::test]
async fn pages_that_do_not_add_up_are_an_error() {
    async fn read(answer: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Result<usize, Error> {
        let gateway = Gateway::start(move |seen| answer(page_of(seen))).await;
        gateway.client().teams().await.map(|teams| teams.len())
    }
    let all = || names(0..150);
    let incomplete = |result: Result<usize, Error>| matches!(result.unwrap_err().kind, ErrorKind::Incomplete { .. });
    // Fewer rows than the total says, and more.
    assert!(incomplete(read(move |page| team_page(&all(), page, 151)).await));
    assert!(incomplete(read(move |page| team_page(&all(), page, 149)).await));
    assert!(incomplete(read(move |page| team_page(&all(), page, 0)).await));
    // The first page again and again.
    assert!(incomplete(read(move |_| team_page(&all(), 1, 150)).await));
    // The second page empty, as after rights were lost.
    assert!(incomplete(read(move |page| team_page(&names(0..100), page, 150)).await));
    // A row went while reading: the next page starts one too late.
    assert!(incomplete(read(move |page| if page == 1 { team_page(&all(), 1, 150) } else { team_page(&names(1..150), 2, 149) }).await));
    // A row came while reading: one is there twice, none is missing.
    let grown = read(move |page| {
        if page == 1 {
            team_page(&all(), 1, 150)
        } else {
            let mut more = vec!["new".to_owned()];
            more.extend(all());
            team_page(&more, 2, 150)
        }
    });
    assert_eq!(grown.await.unwrap(), 150);
}
