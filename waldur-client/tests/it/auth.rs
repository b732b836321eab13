//! Credentials that change, expire and are refused.

use std::fs;
use std::sync::{Arc, Mutex};

use secrecy::SecretString;
use serde_json::json;
use waldur_client::{Auth, Class, Client, ErrorKind, SecretSource};

use crate::recordings::ORDER;
use crate::server::{Reply, Seen, Server, secret, settings, uuid};

fn client(server: &Server, auth: Auth) -> Client {
    let mut settings = settings(server.url());
    settings.auth = auth;
    Client::new(settings).unwrap()
}

fn oidc(server: &Server, client_secret: SecretSource) -> Auth {
    Auth::Oidc { token_url: server.url().join("realms/x/token").unwrap(), client_id: "agent".to_owned(), client_secret }
}

fn is_login(seen: &Seen) -> bool {
    seen.path == "/realms/x/token"
}

fn logins(server: &Server) -> usize {
    server.seen().iter().filter(|seen| is_login(seen)).count()
}

#[tokio::test]
async fn a_token_file_is_read_before_every_call() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    let path = file.clone();
    let source: SecretSource = Arc::new(move || {
        fs::read_to_string(&path)
            .map(|text| SecretString::from(text.trim_end().to_owned()))
            .map_err(|error| format!("{}: {error}", path.display()))
    });
    let server = Server::start(|seen, _| match seen.header("authorization") {
        "Token new" => Reply::json(200, "{}"),
        _ => Reply::json(401, json!({"detail": "Invalid token."})),
    })
    .await;
    let client = client(&server, Auth::Token(source));

    let error = client.me().await.unwrap_err();
    assert_eq!(error.class(), Class::Credential);
    assert!(error.to_string().contains("token"), "{error}");
    assert_eq!(server.seen().len(), 0, "nothing is sent without a token");

    fs::write(&file, "old\n").unwrap();
    let error = client.me().await.unwrap_err();
    assert_eq!((error.class(), error.status()), (Class::Credential, Some(401)));
    assert_eq!(server.seen().len(), 1, "a refused token is not tried again");

    fs::write(&file, "new\n").unwrap();
    client.me().await.unwrap();
}

#[tokio::test]
async fn a_token_that_cannot_be_sent_is_named_without_its_text() {
    let server = Server::always(Reply::json(200, "{}")).await;
    for token in ["", "two lines\nhunter2", "hunter2 ", "hünter2", "hunter2\u{7f}"] {
        let error = client(&server, Auth::Token(secret(token))).me().await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Credential { .. }), "{error:?}");
        assert_eq!(error.class(), Class::Credential);
        assert!(!format!("{error} {error:?}").contains("nter2"), "{error:?}");
    }
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn a_bearer_token_serves_many_calls() {
    let server = Server::start(|seen, _| {
        if is_login(seen) { Reply::json(200, json!({"access_token": "jwt-1", "expires_in": 3600})) } else { Reply::json(200, "{}") }
    })
    .await;
    let client = client(&server, oidc(&server, secret("hunter2")));
    let calls = futures::future::join_all((0..5).map(|_| client.me())).await;
    assert!(calls.iter().all(Result::is_ok));
    client.approve_order(uuid(ORDER)).await.unwrap();

    assert_eq!(logins(&server), 1);
    let seen = server.seen();
    let login = seen.iter().find(|seen| is_login(seen)).unwrap();
    let mut form: Vec<_> = url::form_urlencoded::parse(login.body.as_bytes()).into_owned().collect();
    form.sort();
    let expected = [("client_id", "agent"), ("client_secret", "hunter2"), ("grant_type", "client_credentials")];
    assert_eq!(form, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert!(login.header("authorization").is_empty());
    assert!(seen.iter().filter(|seen| !is_login(seen)).all(|seen| seen.header("authorization") == "Bearer jwt-1"));
}

#[tokio::test]
async fn a_bearer_token_is_renewed_when_its_life_is_over() {
    // No life at all: every call logs in.
    let server = Server::start(|seen, number| {
        if is_login(seen) {
            Reply::json(200, json!({"access_token": format!("jwt-{number}"), "expires_in": "0"}))
        } else {
            Reply::json(200, "{}")
        }
    })
    .await;
    let client = client(&server, oidc(&server, secret("hunter2")));
    client.me().await.unwrap();
    client.me().await.unwrap();
    assert_eq!(logins(&server), 2);
}

#[tokio::test]
async fn a_refused_bearer_token_is_replaced_once() {
    let server = Server::start(|seen, number| {
        if is_login(seen) {
            Reply::json(200, json!({"access_token": format!("jwt-{number}"), "expires_in": 3600}))
        } else if seen.header("authorization") == "Bearer jwt-1" {
            Reply::json(401, json!({"detail": "Token expired jwt-1"}))
        } else {
            Reply::new(200, "")
        }
    })
    .await;
    let client = client(&server, oidc(&server, secret("hunter2")));
    client.approve_order(uuid(ORDER)).await.unwrap();
    let paths: Vec<_> = server.seen().iter().map(is_login).collect();
    assert_eq!(paths, [true, false, true, false]);
    client.approve_order(uuid(ORDER)).await.unwrap();
    assert_eq!(logins(&server), 2);
}

#[tokio::test]
async fn a_bearer_token_that_is_always_refused_ends_in_one_error() {
    let server = Server::start(|seen, _| {
        if is_login(seen) {
            Reply::json(200, json!({"access_token": "jwt-value-1", "expires_in": 3600}))
        } else {
            Reply::json(401, json!({"detail": "no jwt-value-1"}))
        }
    })
    .await;
    let client = client(&server, oidc(&server, secret("hunter2")));
    let error = client.me().await.unwrap_err();
    assert_eq!((error.class(), error.status()), (Class::Credential, Some(401)));
    assert_eq!(server.seen().len(), 4);
    assert!(!format!("{error} {error:?}").contains("jwt-value"), "{error:?}");
}

#[tokio::test]
async fn a_login_that_fails_is_told_apart() {
    let refused = Reply::json(401, json!({"error": "invalid_client", "error_description": "bad secret hunter2"}));
    let cases = [
        (refused, Class::Credential, "invalid_client"),
        (Reply::new(302, "").header("location", "https://elsewhere.example.org/"), Class::Credential, "redirect"),
        (Reply::new(503, "hunter2"), Class::Transient, "503"),
        (Reply::new(429, ""), Class::Transient, "429"),
        (Reply::json(200, json!({"token": "hunter2"})), Class::Transient, "access_token"),
        (Reply::json(200, "{\"access_token\": \"hunter2"), Class::Transient, "access_token"),
    ];
    for (reply, class, text) in cases {
        let server = Server::always(reply).await;
        let error = client(&server, oidc(&server, secret("hunter2"))).approve_order(uuid(ORDER)).await.unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        assert!(error.to_string().contains(text), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        assert!(!error.may_have_happened(), "nothing was sent to Waldur");
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn the_client_secret_is_read_at_every_login() {
    let current = Arc::new(Mutex::new("old"));
    let shared = Arc::clone(&current);
    let source: SecretSource = Arc::new(move || Ok(SecretString::from(*shared.lock().unwrap())));
    let server = Server::start(|seen, _| {
        if !is_login(seen) {
            Reply::json(200, "{}")
        } else if seen.body.contains("client_secret=new") {
            Reply::json(200, json!({"access_token": "jwt", "expires_in": 60}))
        } else {
            Reply::json(400, json!({"error": "unauthorized_client"}))
        }
    })
    .await;
    let client = client(&server, oidc(&server, source));
    assert_eq!(client.me().await.unwrap_err().class(), Class::Credential);
    *current.lock().unwrap() = "new";
    client.me().await.unwrap();
}

#[test]
fn a_token_endpoint_over_plain_http_is_refused() {
    let mut settings = settings("https://w.example.org/".parse().unwrap());
    settings.auth = Auth::Oidc {
        token_url: "http://sso.example.org/token".parse().unwrap(),
        client_id: "agent".to_owned(),
        client_secret: secret("hunter2"),
    };
    assert!(!format!("{settings:?}").contains("hunter2"));
    let error = Client::new(settings).unwrap_err();
    assert!(error.to_string().contains("token URL"), "{error}");
}
