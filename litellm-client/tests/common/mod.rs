//! A gateway on this machine that answers as a test says and remembers what it was asked.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    dead_code,
    reason = "test code, shared by several test programs"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Response, Uri};
use litellm_client::{Client, Settings};
use secrecy::SecretString;
use serde_json::Value;

/// Our own key in every test; it must never be seen in a text.
pub const OUR_KEY: &str = "sk-MARKER-ours-0123456789abcdef";

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub query: String,
    pub authorization: Option<String>,
    pub body: String,
}

impl Seen {
    /// The decoded value of one query parameter.
    pub fn param(&self, name: &str) -> Option<String> {
        url::form_urlencoded::parse(self.query.as_bytes()).find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    }
}

#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(status: u16, body: impl Into<String>) -> Self {
        Self { status, headers: vec![("content-type", "application/json".to_owned())], body: body.into().into_bytes() }
    }

    pub fn text(status: u16, body: &str) -> Self {
        Self { status, headers: vec![("content-type", "text/html".to_owned())], body: body.as_bytes().to_vec() }
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// A recorded exchange with the real proxy, by the name of its file.
    pub fn recorded(name: &str) -> Self {
        let recording = recording(name);
        let status = u16::try_from(recording["status"].as_u64().unwrap()).unwrap();
        // The very text of the file: numbers as the gateway wrote them.
        let text = recording_text(name);
        let start = text.find("\n \"body\": ").unwrap() + "\n \"body\": ".len();
        let body = text[start..].trim_end().strip_suffix('}').unwrap().trim_end();
        Self::json(status, body)
    }
}

fn recording_text(name: &str) -> String {
    let file = format!("{}/../fixtures/recordings/litellm/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&file).unwrap_or_else(|fault| panic!("{file}: {fault}"))
}

pub fn recording(name: &str) -> Value {
    serde_json::from_str(&recording_text(name)).unwrap()
}

pub struct Gateway {
    pub address: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Gateway {
    pub async fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&seen), Arc::new(answer));
        let router = Router::new().fallback(move |request: Request| {
            let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
            async move {
                let (parts, body) = request.into_parts();
                let uri: Uri = parts.uri;
                let seen = Seen {
                    method: parts.method.to_string(),
                    path: uri.path().to_owned(),
                    query: uri.query().unwrap_or_default().to_owned(),
                    authorization: parts.headers.get("authorization").map(|value| value.to_str().unwrap().to_owned()),
                    body: String::from_utf8(to_bytes(body, usize::MAX).await.unwrap().to_vec()).unwrap(),
                };
                log.lock().unwrap().push(seen.clone());
                let reply = answer(&seen);
                let mut response = Response::builder().status(reply.status);
                for (name, value) in reply.headers {
                    response = response.header(name, value);
                }
                response.body(Body::from(reply.body)).unwrap()
            }
        });
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, seen, task }
    }

    /// One that always gives the same answer.
    pub async fn always(reply: Reply) -> Self {
        Self::start(move |_| reply.clone()).await
    }

    /// One that gives a recorded answer.
    pub async fn recorded(name: &str) -> Self {
        Self::always(Reply::recorded(name)).await
    }

    pub fn client(&self) -> Client {
        client(&self.address)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The only request there was.
    pub fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }
}

pub fn settings(url: &str) -> Settings {
    Settings {
        url: url.parse().unwrap(),
        key: Arc::new(|| Ok(SecretString::from(OUR_KEY))),
        timeout: Duration::from_millis(500),
        connect_timeout: Duration::from_millis(500),
        ca_bundle: None,
        allow_insecure_http: false,
        user_agent: "litellm-client-tests".to_owned(),
    }
}

pub fn client(url: &str) -> Client {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    Client::new(settings(url)).unwrap()
}
