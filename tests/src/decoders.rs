//! Every reader of what comes from outside, fed with anything: the three clients over a real connection, the configuration and
//! the catalogue. The property tests and the fuzz targets share it. Whatever is read, the outcome is a value or an error.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::civil::date;
use litellm_client::LogFilter;
use llm_access_agent::{catalogue, config};
use llm_access_k8s::Secrets;
use secrecy::SecretString;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::hostile::read_request;

/// The days that usage is asked for; an answer about others is refused before it is read further.
pub const FROM: jiff::civil::Date = date(2026, 11, 1);
/// The last of them.
pub const TO: jiff::civil::Date = date(2026, 11, 30);

/// A server that gives one answer to everything, and clients of all three kinds that ask it.
pub struct Fed {
    runtime: Runtime,
    answer: Arc<Mutex<Vec<u8>>>,
    waldur: waldur_client::Client,
    gateway: litellm_client::Client,
    kube: Secrets,
}

impl Default for Fed {
    fn default() -> Self {
        Self::new()
    }
}

impl Fed {
    /// Starts the server on loopback.
    #[must_use]
    pub fn new() -> Self {
        rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = Arc::new(Mutex::new(Vec::new()));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve(listener, Arc::clone(&answer)));
        let timeout = Duration::from_secs(20);
        let waldur = waldur_client::Client::new(waldur_client::Settings {
            api_url: url(address),
            auth: waldur_client::Auth::Token(Arc::new(|| Ok(SecretString::from("cafe")))),
            timeout,
            connect_timeout: timeout,
            ca_bundle: None,
            allow_insecure_http: false,
            user_agent: "fed".into(),
            page_size: 100,
        })
        .unwrap();
        let gateway = litellm_client::Client::new(litellm_client::Settings {
            url: url(address),
            key: Arc::new(|| Ok(SecretString::from("sk-fed"))),
            timeout,
            connect_timeout: timeout,
            ca_bundle: None,
            allow_insecure_http: false,
            user_agent: "fed".into(),
        })
        .unwrap();
        let settings = llm_access_k8s::Settings { api_url: Some(url(address)), timeout, ..Default::default() };
        let kube = runtime.block_on(Secrets::connect(settings)).unwrap();
        Self { runtime, answer, waldur, gateway, kube }
    }

    /// From now on everything is answered with this status and body. A list of Waldur is counted as empty, so that it is read
    /// once and not for ever.
    pub fn answer(&self, status: u16, body: &[u8]) {
        let mut bytes = format!("HTTP/1.1 {status} X\r\nX-Result-Count: 0\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(body);
        *self.answer.lock().unwrap() = bytes;
    }

    /// Asks Waldur everything that has an answer; how many answers were taken.
    pub fn ask_waldur(&self) -> usize {
        let (client, id) = (&self.waldur, Uuid::max());
        self.runtime.block_on(async {
            let taken = [
                said(client.me().await),
                said(client.order(id).await),
                said(client.orders(id, &[]).await),
                said(client.orders_of_resource(id, &[]).await),
                said(client.resource(id).await),
                said(client.resources(id, &[]).await),
                said(client.offering(id).await),
                said(client.plan(id).await),
                said(client.usages(id, FROM).await),
                said(client.usages_of_offering(id, FROM).await),
                said(client.api_keys(waldur_client::ApiKeyFilter { offering: Some(id), resource: None }).await),
                said(client.approve_order(id).await),
            ];
            taken.into_iter().filter(|taken| *taken).count()
        })
    }

    /// Asks the gateway everything that has an answer; how many answers were taken.
    pub fn ask_gateway(&self) -> usize {
        let client = &self.gateway;
        let hash = "a".repeat(64);
        self.runtime.block_on(async {
            let taken = [
                said(client.readiness().await),
                said(client.team("t").await),
                said(client.team_with_keys("t").await),
                said(client.teams().await),
                said(client.key(&hash).await),
                said(client.keys().await),
                said(client.keys_of_team("t").await),
                said(client.keys_by_alias("a").await),
                said(client.deleted_keys_of_team("t").await),
                said(client.models_of_key(&SecretString::from("sk-x")).await),
                said(client.model_info().await),
                said(client.daily_activity(&[], FROM, TO).await),
                said(client.daily_totals(&[], FROM, TO).await),
                said(client.spend_logs(LogFilter { team_id: None, model_group: None, failed: false }, FROM, TO, drop).await),
                said(client.delete_team("t").await),
            ];
            taken.into_iter().filter(|taken| *taken).count()
        })
    }

    /// Asks the cluster for Secrets; how many answers were taken.
    pub fn ask_kube(&self) -> usize {
        self.runtime.block_on(async {
            let taken = [said(self.kube.list("n", &BTreeMap::new()).await), said(self.kube.probe("n").await)];
            taken.into_iter().filter(|taken| *taken).count()
        })
    }
}

/// Whether there was an answer. Errors are written out, as a log would do.
fn said<T, E: std::fmt::Display + std::fmt::Debug>(result: Result<T, E>) -> bool {
    if let Err(error) = &result {
        assert!(!format!("{error} {error:?}").is_empty());
    }
    result.is_ok()
}

fn url(address: SocketAddr) -> url::Url {
    format!("http://{address}/").parse().unwrap()
}

async fn serve(listener: TcpListener, answer: Arc<Mutex<Vec<u8>>>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(talk(stream, Arc::clone(&answer)));
    }
}

async fn talk(mut stream: TcpStream, answer: Arc<Mutex<Vec<u8>>>) {
    while let Ok(Some(_)) = read_request(&mut stream).await {
        let bytes = answer.lock().unwrap().clone();
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

thread_local! {
    /// One server for all that a fuzzer makes up.
    static FED: Fed = Fed::new();
}

/// Asks a peer that says this, the status by the first byte and the rest as the body; how many answers were taken.
pub fn read_answer(bytes: &[u8], ask: impl FnOnce(&Fed) -> usize) -> usize {
    let Some((first, body)) = bytes.split_first() else { return 0 };
    let status = [200, 200, 200, 201, 400, 404, 409, 500][usize::from(first % 8)];
    FED.with(|fed| {
        fed.answer(status, body);
        ask(fed)
    })
}

/// Reads a configuration; whether it was taken.
pub fn read_config(bytes: &[u8]) -> bool {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, bytes).unwrap();
    said(config::load(Some(file.path()), &[]).map(drop))
}

/// Reads a catalogue; whether it was taken.
pub fn read_catalogue(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    said(catalogue::parse(text, "inference.yml"))
}
