//! Lost connections, redirects, sizes, and what an error says.

use std::time::Duration;

use serde_json::json;
use tokio::net::TcpListener;
use waldur_client::{BuildError, Class, Client, ErrorKind};

use crate::recordings::{OFFERING, ORDER};
use crate::server::{Reply, Server, TOKEN, Then, raw, settings, uuid};

#[tokio::test]
async fn a_refused_connection_was_surely_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let client = Client::new(settings(url.parse().unwrap())).unwrap();
    let error = client.approve_order(uuid(ORDER)).await.unwrap_err();
    let ErrorKind::Unreachable { cause } = &error.kind else {
        panic!("{error:?}");
    };
    assert!(cause.to_lowercase().contains("connection refused"), "{cause}");
    assert!(!error.may_have_happened());
    assert_eq!(error.class(), Class::Transient);
    // The query is not part of an error.
    let error = client.orders(uuid(OFFERING), &[]).await.unwrap_err();
    assert!(!error.to_string().contains("offering_uuid"), "{error}");
    assert!(!error.to_string().contains(OFFERING), "{error}");
    assert_eq!(error.path, "/api/marketplace-orders/");
    assert_eq!(error.method, "GET");
}

#[tokio::test]
async fn a_lost_answer_may_have_happened_for_a_write_only() {
    let cases: [(&str, Then); 4] = [
        ("", Then::Close),
        ("HTTP/1.1 200 OK\r\nContent-Len", Then::Close),
        ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"uuid\":", Then::Close),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"uui\r\n", Then::Close),
    ];
    for (bytes, then) in cases {
        let (url, task) = raw(bytes, then).await;
        let client = Client::new(settings(url)).unwrap();
        let write = client.approve_order(uuid(ORDER)).await.unwrap_err();
        assert!(matches!(write.kind, ErrorKind::Interrupted { .. }), "{bytes:?}: {write:?}");
        assert!(write.may_have_happened());
        assert_eq!(write.class(), Class::Transient);
        let read = client.me().await.unwrap_err();
        assert!(matches!(read.kind, ErrorKind::Interrupted { .. }), "{bytes:?}: {read:?}");
        assert!(!read.may_have_happened());
        task.abort();
    }
}

#[tokio::test]
async fn a_call_that_hangs_ends_with_the_time_out() {
    for bytes in ["", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"] {
        let (url, task) = raw(bytes, Then::Hang).await;
        let mut settings = settings(url);
        settings.timeout = Duration::from_millis(100);
        let client = Client::new(settings).unwrap();
        let error = client.set_order_done(uuid(ORDER)).await.unwrap_err();
        let ErrorKind::Interrupted { cause } = &error.kind else {
            panic!("{error:?}");
        };
        assert!(cause.contains("timed out"), "{cause}");
        assert!(error.may_have_happened());
        task.abort();
    }
}

#[tokio::test]
async fn a_refusal_whose_text_is_lost_is_still_a_refusal() {
    let bytes = "HTTP/1.1 409 Conflict\r\nContent-Length: 100\r\n\r\n{\"detail\":";
    let (url, task) = raw(bytes, Then::Close).await;
    let client = Client::new(settings(url)).unwrap();
    let error = client.approve_order(uuid(ORDER)).await.unwrap_err();
    assert_eq!(error.class(), Class::Conflict);
    task.abort();
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let other = Server::always(Reply::json(200, "{}")).await;
    let target = format!("http://{}/api/users/me/?secret=x", other.address);
    for status in [301, 302, 303, 307, 308] {
        let server = Server::always(Reply::new(status, "").header("location", &target)).await;
        let client = server.client();
        for error in [client.me().await.unwrap_err(), client.approve_order(uuid(ORDER)).await.unwrap_err()] {
            let ErrorKind::Redirected { location_host, .. } = &error.kind else {
                panic!("{error:?}");
            };
            assert_eq!(location_host.as_deref(), Some("127.0.0.1"));
            assert_eq!(error.status(), Some(status));
            assert_eq!(error.class(), Class::Transient);
            assert!(!error.may_have_happened());
            assert!(error.to_string().contains("set the API URL"), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert_eq!(server.seen().len(), 2);
    }
    assert_eq!(other.seen().len(), 0);
}

#[tokio::test]
async fn an_unreadable_success_names_the_place() {
    let odd_role = json!({"username": "x", "permissions": [{}, {"scope_uuid": "nope"}]});
    for (body, place) in [
        (odd_role.to_string(), "permissions"),
        ("{\"username\":".to_owned(), "username"),
        (String::new(), "."),
        ("<html>login</html>".to_owned(), "."),
        ("{} {}".to_owned(), "."),
    ] {
        let server = Server::always(Reply::new(200, body.clone())).await;
        let error = server.client().me().await.unwrap_err();
        let ErrorKind::Decode { at, .. } = &error.kind else {
            panic!("{error:?}");
        };
        assert_eq!(at, place, "{body}");
        assert_eq!(error.class(), Class::Transient);
    }
    let rows = json!([{"uuid": "1f2e3d4c5b6a47988990a1b2c3d4e5f6"}, {"uuid": "zzz"}]);
    let server = Server::always(Reply::json(200, rows).header("x-result-count", 2)).await;
    let error = server.client().orders(uuid(OFFERING), &[]).await.unwrap_err();
    assert!(matches!(&error.kind, ErrorKind::Decode { at, .. } if at == "[1].uuid"), "{error:?}");
}

#[tokio::test]
async fn bodies_have_a_largest_size() {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n[", (8 << 20) + 1);
    let (url, task) = raw(head, Then::Hang).await;
    let client = Client::new(settings(url)).unwrap();
    let error = client.me().await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::TooLarge { .. }), "{error:?}");
    task.abort();

    // Without a length up front it is found while reading.
    let mut endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n880000\r\n".to_vec();
    endless.resize(endless.len() + 0x88_0000, b' ');
    let (url, task) = raw(endless, Then::Hang).await;
    let client = Client::new(settings(url)).unwrap();
    let error = client.me().await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::TooLarge { .. }), "{error:?}");
    task.abort();
}

#[tokio::test]
async fn an_endless_refusal_is_cut() {
    let server = Server::always(Reply::new(400, "x".repeat(4 << 20))).await;
    let error = server.client().approve_order(uuid(ORDER)).await.unwrap_err();
    assert_eq!(error.class(), Class::Refused);
    assert!(error.to_string().chars().count() < 700);
}

#[tokio::test]
async fn what_a_server_echoes_does_not_reach_the_error() {
    let key = "sk-0123456789abcdefghijklmnop";
    let texts = [
        json!({"detail": format!("Invalid token {TOKEN}")}),
        json!({"api_key": [format!("bad key {key}")]}),
        json!({ TOKEN: [key] }),
        json!([format!("Authorization: Token {TOKEN}"), key]),
        json!(format!("{TOKEN}{key}")),
    ];
    for status in [400, 401, 403, 404, 409, 500] {
        for text in &texts {
            let server = Server::always(Reply::json(status, text)).await;
            let error = server.client().report_api_key_created(uuid(ORDER), "r-1", &key.into()).await.unwrap_err();
            for shown in [error.to_string(), format!("{error:?}")] {
                assert!(!shown.contains(TOKEN) && !shown.contains(key), "{status} {shown}");
            }
        }
    }
    // A plain page and an unreadable success are no way around it.
    let page = Reply::new(500, format!("<title>{TOKEN}</title>{key}")).header("content-type", "text/html");
    let odd = Reply::json(200, json!({"permissions": [TOKEN]}));
    for reply in [page, odd] {
        let error = Server::always(reply.clone()).await;
        let error = error.client().me().await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains(TOKEN), "{error:?}");
    }
}

#[tokio::test]
async fn secrets_are_not_shown() {
    let settings = settings("https://w.example.org/".parse().unwrap());
    assert!(!format!("{settings:?}").contains(TOKEN));
    let client = Client::new(settings).unwrap();
    assert!(!format!("{client:?}").contains(TOKEN));
}

#[tokio::test]
async fn every_call_names_the_agent() {
    let server = Server::always(Reply::json(200, "{}")).await;
    server.client().me().await.unwrap();
    assert_eq!(server.seen()[0].header("user-agent"), "llm-access-agent/test");
    assert_eq!(server.seen()[0].path, "/api/users/me/");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let with = |url: &str| settings(url.parse().unwrap());
    let error = Client::new(with("http://w.example.org/")).unwrap_err();
    assert!(matches!(error, BuildError::InsecureHttp { .. }), "{error:?}");
    assert!(error.to_string().contains("allow_insecure_http"), "{error}");
    let mut allowed = with("http://w.example.org/");
    allowed.allow_insecure_http = true;
    assert!(Client::new(allowed).is_ok());

    let error = Client::new(with("https://u:hunter2@w.example.org/")).unwrap_err();
    assert!(matches!(error, BuildError::BadUrl { .. }), "{error:?}");

    for pem in [&b"no certificate"[..], b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let mut settings = with("https://w.example.org/");
        settings.ca_bundle = Some(pem.to_vec());
        let error = Client::new(settings).unwrap_err();
        assert!(matches!(error, BuildError::BadCa { .. }), "{error:?}");
    }

    let mut settings = with("https://w.example.org/");
    settings.user_agent = "a\nb".to_owned();
    assert!(matches!(Client::new(settings).unwrap_err(), BuildError::Http { .. }));
}
