//! Small servers for the tests, and clients that speak to them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Response};
use secrecy::SecretString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use url::Url;
use uuid::Uuid;
use waldur_client::{Auth, Client, SecretSource, Settings};

/// Shape of a Waldur token; not one that exists.
pub const TOKEN: &str = "feedfacefeedfacefeedfacefeedfacefeedface";

/// A request as the server saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub query: Vec<(String, String)>,
    pub headers: HeaderMap,
    pub body: String,
}

impl Seen {
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }

    pub fn page(&self) -> usize {
        self.query("page").unwrap().parse().unwrap()
    }
}

#[derive(Debug, Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    pub fn json(status: u16, body: impl ToString) -> Self {
        Self::new(status, body.to_string()).header("content-type", "application/json")
    }

    pub fn header(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }
}

/// A server that answers by a closure over the request and its number, counted from 1.
pub struct Server {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

impl Server {
    pub async fn start(answer: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let answer = Arc::new(answer);
        let app = axum::Router::new().fallback(move |request: Request| {
            let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
            async move {
                let (parts, body) = request.into_parts();
                let body = to_bytes(body, usize::MAX).await.unwrap();
                let query = parts.uri.query().unwrap_or_default();
                let request = Seen {
                    method: parts.method.to_string(),
                    path: parts.uri.path().to_owned(),
                    query: url::form_urlencoded::parse(query.as_bytes()).into_owned().collect(),
                    headers: parts.headers,
                    body: String::from_utf8(body.to_vec()).unwrap(),
                };
                let number = {
                    let mut log = log.lock().unwrap();
                    log.push(request.clone());
                    log.len()
                };
                let reply = answer(&request, number);
                let mut response = Response::builder().status(reply.status);
                for (name, value) in reply.headers {
                    response = response.header(name, value);
                }
                response.body(Body::from(reply.body)).unwrap()
            }
        });
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, seen, task }
    }

    /// A server with one answer for everything.
    pub async fn always(reply: Reply) -> Self {
        Self::start(move |_, _| reply.clone()).await
    }

    pub fn url(&self) -> Url {
        format!("http://{}/", self.address).parse().unwrap()
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    pub fn client(&self) -> Client {
        Client::new(settings(self.url())).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a raw server does after its bytes.
#[derive(Clone, Copy)]
pub enum Then {
    Close,
    Hang,
}

/// A server that reads a request, sends these bytes and then closes or hangs.
pub async fn raw(bytes: impl Into<Vec<u8>>, then: Then) -> (Url, JoinHandle<()>) {
    let bytes = bytes.into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let mut open = Vec::new();
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 65536];
            let _ = socket.read(&mut request).await;
            let _ = socket.write_all(&bytes).await;
            match then {
                Then::Close => drop(socket),
                Then::Hang => open.push(socket),
            }
        }
    });
    (url.parse().unwrap(), task)
}

pub fn secret(text: &str) -> SecretSource {
    let text = text.to_owned();
    Arc::new(move || Ok(SecretString::from(text.clone())))
}

pub fn settings(api_url: Url) -> Settings {
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    Settings {
        api_url,
        auth: Auth::Token(secret(TOKEN)),
        timeout: Duration::from_secs(10),
        connect_timeout: Duration::from_secs(5),
        ca_bundle: None,
        allow_insecure_http: false,
        user_agent: "llm-access-agent/test".to_owned(),
        page_size: 100,
    }
}

pub fn uuid(hex: &str) -> Uuid {
    Uuid::parse_str(hex).unwrap()
}

/// A uuid that stands for row `n`.
pub fn row_uuid(n: usize) -> Uuid {
    Uuid::from_u128(n as u128 + 1)
}
