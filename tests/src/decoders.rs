//! Every reader of what comes from outside, fed with anything: the three clients over a real connection, the configuration and
//! the catalogue. The property tests and the fuzz targets share it. Whatever is read, the outcome is a value or an error.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::civil::date;
use litellm_client::{LogFilter, NewKey};
use llm_access_agent::{catalogue, config};
use llm_access_k8s::{Deployments, Draft, Events, Lease, LeaseSettings, Rollout, Secrets, Stored};
use rust_decimal::Decimal;
use secrecy::SecretString;
use serde::de::IgnoredAny;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use uuid::Uuid;
use waldur_client::{Usage, UsageReport};

use crate::hostile::read_request;
use crate::program::pause;

/// The days that usage is asked for; an answer about others is refused before it is read further.
pub const FROM: jiff::civil::Date = date(2026, 11, 1);
/// The last of them.
pub const TO: jiff::civil::Date = date(2026, 11, 30);

/// A Secret as it was read, with a variable of ours and one that we once wrote.
const SECRETS: &[u8] = br#"{"kind": "SecretList", "metadata": {}, "items": [{"metadata": {"name": "n", "namespace": "n", "uid": "u", "resourceVersion": "1", "managedFields": [{"manager": "llm-access-agent", "fieldsV1": {"f:data": {"f:A": {}, "f:B": {}}}}]}, "data": {"A": "MQ==", "B": "MQ=="}}]}"#;

/// What was asked, and whether the answer was taken.
pub type Asked = Vec<(&'static str, bool)>;

/// What the server says.
#[derive(Clone, Debug, Default)]
struct Says {
    status: u16,
    /// `X-Result-Count`, how many rows a list of Waldur has in all.
    count: Option<String>,
    /// What the first page holds, the second and so on.
    pages: Vec<Vec<u8>>,
    /// Whether the first page is all there is, whichever is asked for.
    alone: bool,
}

impl Says {
    fn to(&self, request: &[u8]) -> Vec<u8> {
        let number = if self.alone { 1 } else { page_asked_for(request) };
        let Some(body) = self.pages.get(number - 1) else {
            return answer(404, "Content-Type: application/json\r\n", br#"{"detail":"Invalid page."}"#);
        };
        let mut headers = self.count.iter().map(|count| format!("X-Result-Count: {count}\r\n")).collect::<String>();
        if !self.alone && number < self.pages.len() {
            headers.push_str("Link: <http://elsewhere.example.org/?page=9>; rel=\"next\"\r\n");
        }
        answer(self.status, &headers, body)
    }
}

/// The number of the page that a request is about.
fn page_asked_for(request: &[u8]) -> usize {
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    line.split(['?', '&', ' ']).find_map(|part| part.strip_prefix("page=")?.parse().ok()).unwrap_or(1).max(1)
}

fn answer(status: u16, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status} X\r\n{headers}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// The server's side.
#[derive(Debug, Default)]
struct Server {
    says: Mutex<Says>,
    requests: AtomicUsize,
}

/// A server that says one thing to everything, and clients of all three kinds that ask it.
pub struct Fed {
    runtime: Runtime,
    server: Arc<Server>,
    waldur: waldur_client::Client,
    /// Logs in at the same server before it asks.
    by_login: waldur_client::Client,
    gateway: litellm_client::Client,
    kube: Secrets,
    /// A Secret that was read before.
    stored: Stored,
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
        let server = Arc::new(Server::default());
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve(listener, Arc::clone(&server)));
        let timeout = Duration::from_secs(20);
        let waldur = |auth| {
            waldur_client::Client::new(waldur_client::Settings {
                api_url: url(address),
                auth,
                timeout,
                connect_timeout: timeout,
                ca_bundle: None,
                allow_insecure_http: false,
                user_agent: "fed".into(),
                page_size: 100,
            })
            .unwrap()
        };
        let by_login = waldur(waldur_client::Auth::Oidc {
            token_url: url(address),
            client_id: "fed".into(),
            client_secret: Arc::new(|| Ok(SecretString::from("cafe"))),
        });
        let waldur = waldur(waldur_client::Auth::Token(Arc::new(|| Ok(SecretString::from("cafe")))));
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
        *server.says.lock().unwrap() = Says { status: 200, count: None, pages: vec![SECRETS.to_vec()], alone: true };
        let stored = runtime.block_on(kube.list("n", &BTreeMap::new())).unwrap().remove(0);
        Self { runtime, server, waldur, by_login, gateway, kube, stored }
    }

    /// From now on everything is answered with this status and body. Of a list of Waldur that is said to be all, so that it is
    /// read once and not for ever.
    pub fn answer(&self, status: u16, body: &[u8]) {
        let rows = serde_json::from_slice::<Vec<IgnoredAny>>(body).map_or(0, |rows| rows.len());
        self.say(Says { status, count: Some(rows.to_string()), pages: vec![body.to_vec()], alone: true });
    }

    /// From now on the n-th page of everything is the n-th of these, and there is none behind the last. `count` is what Waldur
    /// counts in all, where it counts.
    pub fn answer_pages(&self, status: u16, count: Option<&str>, pages: &[Vec<u8>]) {
        self.say(Says { status, count: count.map(str::to_owned), pages: pages.to_vec(), alone: false });
    }

    fn say(&self, says: Says) -> Says {
        std::mem::replace(&mut *self.server.says.lock().unwrap(), says)
    }

    /// Asks Waldur everything that has an answer.
    pub fn ask_waldur(&self) -> Asked {
        let (client, id) = (&self.waldur, Uuid::max());
        let usages = [Usage { kind: "m:input".into(), amount: Decimal::ONE }];
        let report = UsageReport { usages: &usages, ..UsageReport::default() };
        let mut asked = self.runtime.block_on(async {
            vec![
                ("me", said(client.me().await)),
                ("order", said(client.order(id).await)),
                ("orders", said(client.orders(id, &[]).await)),
                ("orders_of_resource", said(client.orders_of_resource(id, &[]).await)),
                ("resource", said(client.resource(id).await)),
                ("resources", said(client.resources(id, &[]).await)),
                ("offering", said(client.offering(id).await)),
                ("plan", said(client.plan(id).await)),
                ("plan_periods", said(client.plan_periods(id).await)),
                ("usages", said(client.usages(id, FROM).await)),
                ("usages_of_offering", said(client.usages_of_offering(id, FROM).await)),
                ("api_keys", said(client.api_keys(waldur_client::ApiKeyFilter { offering: Some(id), resource: None }).await)),
                ("approve_order", said(client.approve_order(id).await)),
                ("report_usage", said(client.report_usage(id, &report).await.inspect_err(read_refusal))),
            ]
        });
        asked.push(("login", self.log_in()));
        asked
    }

    /// Asks who we are after a login of its own.
    fn log_in(&self) -> bool {
        let taken = said(self.runtime.block_on(self.by_login.me()));
        // A token is kept until it is refused, and the next answer is to be read as a login again.
        let says = self.say(Says { status: 401, count: None, pages: vec![b"{}".to_vec()], alone: true });
        assert!(!said(self.runtime.block_on(self.by_login.me())));
        self.say(says);
        taken
    }

    /// Asks the gateway everything that has an answer.
    pub fn ask_gateway(&self) -> Asked {
        let client = &self.gateway;
        let hash = "a".repeat(64);
        let new = |key| NewKey { team_id: "t".into(), alias: "a".into(), key, metadata: serde_json::Map::new(), blocked: false };
        let (own, any) = (new(Some(SecretString::from("sk-fed-0123456789abcdef"))), new(None));
        let filter = LogFilter { team_id: None, model_group: None, failed: false };
        self.runtime.block_on(async {
            vec![
                ("readiness", said(client.readiness().await)),
                ("team", said(client.team("t").await)),
                ("team_with_keys", said(client.team_with_keys("t").await)),
                ("teams", said(client.teams().await)),
                ("key", said(client.key(&hash).await)),
                ("own_key", said(client.own_key().await)),
                ("keys", said(client.keys().await)),
                ("keys_of_team", said(client.keys_of_team("t").await)),
                ("keys_by_alias", said(client.keys_by_alias("a").await)),
                ("deleted_keys_of_team", said(client.deleted_keys_of_team("t").await)),
                ("generate_key, ours", said(client.generate_key(&own).await)),
                ("generate_key, theirs", said(client.generate_key(&any).await)),
                ("models_of_key", said(client.models_of_key(&SecretString::from("sk-x")).await)),
                ("model_info", said(client.model_info().await)),
                ("daily_activity", said(client.daily_activity(&[], FROM, TO).await)),
                ("daily_totals", said(client.daily_totals(&[], FROM, TO).await)),
                ("spend_logs", said(client.spend_logs(filter, FROM, TO, drop).await)),
                ("latest_calls", said(client.latest_calls(filter, FROM, TO).await)),
                ("delete_team", said(client.delete_team("t").await)),
            ]
        })
    }

    /// Asks the cluster for Secrets, changes one, and asks for all else that the agent has there.
    pub fn ask_kube(&self) -> Asked {
        let (kube, stored) = (&self.kube, &self.stored);
        let draft = Draft {
            name: stored.name.clone(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            data: BTreeMap::from([("A".to_owned(), "2".into())]),
        };
        let (deployments, events) = (Deployments::new(kube), Events::new(kube, "fed"));
        let rollout = Rollout { uid: "u".into(), annotations: BTreeMap::new() };
        self.runtime.block_on(async {
            vec![
                ("list", said(kube.list("n", &BTreeMap::new()).await)),
                ("probe", said(kube.probe("n").await)),
                ("create", said(kube.create("n", &draft).await)),
                ("apply", said(kube.apply(stored, &draft).await)),
                ("overwrite", said(kube.overwrite(stored, &draft).await)),
                ("delete", said(kube.delete(stored).await)),
                ("deployment", said(deployments.get("n", "n").await)),
                ("annotate", said(deployments.annotate("n", "n", &rollout, "a", "b").await)),
                ("event", said(events.probe("n").await)),
                ("lease", self.stand_for_lease().await),
            ]
        })
    }

    /// Stands for a Lease until it was looked at twice; whether it was had.
    async fn stand_for_lease(&self) -> bool {
        let times = LeaseSettings { retry: Duration::from_millis(1), ..LeaseSettings::new("n", "n", "fed") };
        let asked = || self.server.requests.load(Ordering::Relaxed);
        let (before, began) = (asked(), Instant::now());
        let lease = Lease::start(&self.kube, times).unwrap();
        let leading = lease.watch();
        // A look is one request, and a second one where the Lease is taken.
        while asked() < before + 4 && leading.has_changed().is_ok() && began.elapsed() < Duration::from_secs(20) {
            pause(Duration::from_micros(200)).await;
        }
        assert!(leading.has_changed().is_ok(), "nobody stands for the Lease any more");
        let had = lease.is_leader();
        lease.release().await;
        had
    }
}

/// What the agent looks for in a refused report of usage.
fn read_refusal(error: &waldur_client::Error) {
    let (components, places) = (error.invalid_components(), error.refused_usages());
    assert!(components.iter().all(|name| !name.is_empty()), "{components:?} {places:?}");
    let _ = error.refuses_days() || error.is_about("usages") || error.may_have_happened();
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

async fn serve(listener: TcpListener, server: Arc<Server>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(talk(stream, Arc::clone(&server)));
    }
}

async fn talk(mut stream: TcpStream, server: Arc<Server>) {
    while let Ok(Some(request)) = read_request(&mut stream).await {
        server.requests.fetch_add(1, Ordering::Relaxed);
        let bytes = server.says.lock().unwrap().to(&request);
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

thread_local! {
    /// One server for all that a fuzzer makes up.
    static FED: Fed = Fed::new();
}

/// How many of a list's rows a made-up peer says that there are.
const COUNTS: [Option<&str>; 8] = [None, Some("0"), Some("1"), Some("2"), Some("3"), Some("-1"), Some("18446744073709551616"), Some("two")];

/// What stands between two pages of a made-up answer: no byte of any text.
const BETWEEN: u8 = 0xff;

/// Asks a peer that says this, the status by the first byte and the rest as the body; how many answers were taken. With the
/// first byte's highest bit the rest is a list in pages, and three more bits choose what the peer counts.
pub fn read_answer(bytes: &[u8], ask: impl FnOnce(&Fed) -> Asked) -> usize {
    let Some((first, body)) = bytes.split_first() else { return 0 };
    let status = [200, 200, 200, 201, 400, 404, 409, 500][usize::from(first % 8)];
    FED.with(|fed| {
        if first & 0x80 == 0 {
            fed.answer(status, body);
        } else {
            let pages: Vec<Vec<u8>> = body.split(|byte| *byte == BETWEEN).map(<[u8]>::to_vec).collect();
            fed.answer_pages(status, COUNTS[usize::from(first >> 3 & 7)], &pages);
        }
        ask(fed).into_iter().filter(|(_, taken)| *taken).count()
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
