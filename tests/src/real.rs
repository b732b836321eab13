//! The same environment with real peers: a LiteLLM proxy on PostgreSQL and a Kubernetes API with RBAC. Waldur is the
//! simulator. `tests/real/run` starts the peers and says in `LLM_ACCESS_REAL_*` where they are.
//!
//! All tests share the peers, so each [`RealWorld`] has an owner, an offering, uuids and namespaces of its own. The agent
//! reaches the peers through relays that pass everything on, log the calls, and can break one on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine as _;
use jiff::{SignedDuration, Timestamp};
use llm_access_agent::agent::Agent;
use llm_access_agent::clock::Clock;
use llm_access_agent::config::{self, Config};
use llm_access_fixtures::clock::SimClock;
use llm_access_fixtures::faults::{Faults, Peer};
use llm_access_fixtures::server::{Running, serve};
use llm_access_fixtures::waldur::{Options, Profile, Project, Waldur};
use reqwest::Method;
use rust_decimal::{Decimal, RoundingStrategy};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::runtime::{Builder, Runtime};
use url::Url;
use uuid::Uuid;

use crate::checker::hash;
use crate::program::{self, Program};

/// What `tests/real/run` says in the variable `LLM_ACCESS_REAL_<name>`.
#[must_use]
pub fn told(name: &str) -> String {
    let variable = format!("LLM_ACCESS_REAL_{name}");
    std::env::var(&variable).unwrap_or_else(|_| panic!("{variable} is not set: run this suite by `make test-real`"))
}

/// An outage of something below the peers that all tests share; it ends with the test at the latest.
pub struct Outage {
    what: Option<&'static str>,
}

impl Outage {
    /// Of the `database` or the `apiserver`.
    pub async fn of(what: &'static str) -> Self {
        let outage = Self { what: Some(what) };
        let output = Command::new(told("PEERS")).args([what, "stop"]).output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        outage
    }

    /// Ends it.
    pub fn over(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(what) = self.what.take() {
            let output = std::process::Command::new(told("PEERS")).args([what, "start"]).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        self.end();
    }
}

/// A pause in real time, between two looks at a real peer.
#[expect(clippy::disallowed_methods, reason = "real peers follow no clock of ours")]
pub async fn pause() {
    tokio::time::sleep(Duration::from_millis(250)).await;
}

/// Looks until `look` gives something, for up to two minutes.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Result<T, String>) -> T {
    let mut last = String::new();
    for _ in 0..480 {
        match look().await {
            Ok(found) => return found,
            Err(seen) => last = seen,
        }
        pause().await;
    }
    panic!("{what} did not come about; last seen: {last}");
}

#[expect(clippy::disallowed_methods, reason = "real peers follow no clock of ours")]
fn wall_clock() -> Timestamp {
    Timestamp::now()
}

/// Which LiteLLM proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As an operator gets it who changes nothing.
    Default,
    /// Gives every new team a budget and a limit that nobody ordered.
    TeamDefaults,
    /// Refuses keys whose value the caller chose.
    NoCustomKeys,
}

impl Variant {
    /// Where it listens.
    #[must_use]
    pub fn url(self) -> Url {
        let name = match self {
            Self::Default => "LITELLM_URL",
            Self::TeamDefaults => "LITELLM_TEAM_DEFAULTS_URL",
            Self::NoCustomKeys => "LITELLM_NO_CUSTOM_KEYS_URL",
        };
        told(name).parse().unwrap()
    }
}

/// Where Secrets are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealStore {
    /// A folder.
    Directory,
    /// The cluster, through a relay.
    Kube,
    /// The cluster, as in production: TLS with the cluster's authority, and the service account's token.
    KubeDirect,
}

/// Whose time the agent and Waldur follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// The machine's.
    Real,
    /// A clock that starts at the machine's time and is moved by hand.
    Manual,
}

/// One environment.
pub struct RealWorld {
    /// Waldur's time.
    pub sim_clock: SimClock,
    /// The agents' time.
    pub clock: Clock,
    /// The log of the agents' calls, and faults on their way.
    pub faults: Faults,
    /// Waldur, simulated.
    pub waldur: Waldur,
    /// The gateway.
    pub gateway: Gateway,
    /// The cluster, where Secrets are kept there.
    pub cluster: Option<Cluster>,
    /// The offering that is sold.
    pub offering: Uuid,
    /// A project that orders.
    pub project: Project,
    /// The owner string.
    pub owner: String,
    time: Time,
    folder: TempDir,
}

/// A number that no other world has, in this process or in another one.
fn seed() -> u64 {
    static WORLDS: AtomicU64 = AtomicU64::new(0);
    let nanos = u64::try_from(wall_clock().as_nanosecond().unsigned_abs() % u128::from(u32::MAX)).unwrap();
    let world = WORLDS.fetch_add(1, Ordering::Relaxed);
    nanos << 24 | u64::from(std::process::id() % 0xffff) << 8 | world
}

impl RealWorld {
    /// A world on the machine's own time, or on a clock that is moved by hand.
    pub async fn start(profile: Profile, variant: Variant, store: RealStore, time: Time) -> Self {
        rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
        let (seed, now, faults) = (seed(), wall_clock(), Faults::new());
        let (sim_clock, clock) = match time {
            Time::Real => (SimClock::real(), Clock::system()),
            Time::Manual => (SimClock::at(now), Clock::manual(now)),
        };
        let options = Options { profile, clock: sim_clock.clone(), faults: faults.clone(), listen: None };
        let waldur = Waldur::start_seeded(options, seed).await;
        let gateway = Gateway::reach(variant, &faults).await;
        let offering = waldur.add_offering("Shared LLM access");
        waldur.set_models(offering, &["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "all"]);
        let project = waldur.add_project("Seabird Acoustics");
        let folder = tempfile::tempdir().unwrap();
        let cluster = match store {
            RealStore::Directory => None,
            RealStore::Kube => Some(Cluster::reach(seed, &folder, Some(&faults)).await),
            RealStore::KubeDirect => Some(Cluster::reach(seed, &folder, None).await),
        };
        let world =
            Self { sim_clock, clock, faults, waldur, gateway, cluster, offering, project, owner: format!("world-{seed:x}"), time, folder };
        world.write("waldur-token", &world.waldur.agent_token());
        world.write("gateway-key", &world.gateway.master);
        world.write("catalogue.yml", &crate::catalogue(&["kestrel-8b", "heron-70b", "qwen2.5-0.5b"]));
        world
    }

    /// Writes a file into the world's folder.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// The folder of the directory store.
    #[must_use]
    pub fn secrets_folder(&self) -> PathBuf {
        self.folder.path().join("secrets")
    }

    /// The configuration file of an agent, with the usual limits.
    #[must_use]
    pub fn config_text(&self, more: &str) -> String {
        self.config_text_with("{max_budget: {default: 20, max: 1000}, tpm_limit: {default: 10000000}, rpm_limit: {default: 600}}", more)
    }

    /// The configuration file with these limits of the offering, and `more` at its end.
    #[must_use]
    pub fn config_text_with(&self, limits: &str, more: &str) -> String {
        let folder = self.folder.path().display();
        let secrets = match &self.cluster {
            None => format!("{{store: directory, path: {}}}", self.secrets_folder().display()),
            Some(cluster) => format!(
                "{{store: kubernetes, kubeconfig: {folder}/kubeconfig, context: agent, chat_namespace: {}, key_namespace: {}}}",
                cluster.chat, cluster.keys
            ),
        };
        format!(
            "owner: {}\nwaldur: {{api_url: {}, token_file: {folder}/waldur-token, timeout: 10s}}\n\
             gateway: {{url: {}, public_url: {}, key_file: {folder}/gateway-key, timeout: 20s}}\n\
             webui: {{url: https://chat.example.org}}\ncatalogue: {{file: {folder}/catalogue.yml}}\nsecrets: {secrets}\n\
             offerings:\n  - {{uuid: {}, always_include: [qwen3-embedding-0-6b], limits: {limits}}}\n{more}",
            self.owner,
            self.waldur.api_url(),
            self.gateway.relay.url,
            self.gateway.url,
            self.offering,
        )
    }

    /// Reads a configuration text as the program does.
    #[must_use]
    pub fn parse(&self, text: &str) -> Config {
        let path = self.write("config.yml", text);
        config::load(Some(&path), &[]).unwrap_or_else(|errors| panic!("{errors}\n{text}")).config
    }

    /// A fresh agent.
    pub async fn agent(&self) -> Agent {
        self.agent_of(&self.config_text("")).await
    }

    /// A fresh agent of this configuration.
    pub async fn agent_of(&self, text: &str) -> Agent {
        Agent::new(self.parse(text), self.clock.clone()).await.unwrap()
    }

    /// A fresh agent in a process of its own.
    pub async fn process(&self) -> Process {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (config, clock) = (self.parse(&self.config_text("")), self.clock.clone());
        let agent = runtime.spawn(async move { Agent::new(config, clock).await.unwrap() }).await.unwrap();
        Process { runtime, agent }
    }

    /// Lets time pass.
    pub async fn advance(&self, by: Duration) {
        match self.time {
            Time::Real => pause().await,
            Time::Manual => {
                self.sim_clock.advance(by);
                self.clock.advance(by);
            }
        }
    }

    /// One order beat, and the work it begins to its end.
    pub async fn beat(&self, agent: &Agent) {
        agent.order_beat().await;
        agent.settle().await;
    }

    /// One slow beat, and the repairs it begins to their end.
    pub async fn slow_beat(&self, agent: &Agent) {
        let drift = agent.resource_beat().await;
        agent.settle().await;
        drop(drift);
    }

    /// Beats until no order is open.
    pub async fn run_to_rest(&self, agent: &Agent) {
        for _ in 0..240 {
            self.beat(agent).await;
            if self.open_orders().is_empty() {
                return;
            }
            self.advance(Duration::from_secs(60)).await;
        }
        panic!("still open: {:?}; waiting: {:?}; conditions: {:?}", self.open_orders(), agent.schedule.waiting(), agent.conditions.all());
    }

    /// Orders that wait for the provider.
    #[must_use]
    pub fn open_orders(&self) -> Vec<Uuid> {
        self.waldur
            .orders()
            .iter()
            .filter(|order| matches!(order.state.as_str(), "pending-provider" | "executing"))
            .map(|order| order.uuid)
            .collect()
    }

    /// Orders and sees it through.
    pub async fn sold(&self, agent: &Agent, name: &str, models: &[&str], limits: &[(&str, &str)]) -> Uuid {
        let (order, resource) = self.waldur.order(self.offering, &self.project, name, models, limits);
        self.run_to_rest(agent).await;
        assert_eq!(self.waldur.order_state(order), "done", "{:?}", agent.conditions.all());
        resource
    }

    /// The Secrets of a resource: variables by slot.
    pub async fn secrets(&self, resource: Uuid) -> BTreeMap<String, BTreeMap<String, String>> {
        let id = resource.simple().to_string();
        match &self.cluster {
            None => crate::read_env_files(&self.secrets_folder(), &id),
            Some(cluster) => cluster.secrets_of(&id).await,
        }
    }

    /// The key in a Secret of a resource.
    pub async fn key(&self, resource: Uuid, slot: &str) -> String {
        let secrets = self.secrets(resource).await;
        let data =
            secrets.get(slot).unwrap_or_else(|| panic!("no {slot} Secret for {}; there are {:?}", resource.simple(), secrets.keys()));
        key_in(data).unwrap()
    }

    /// A chat as somebody does it who was handed this Secret and nothing else.
    pub async fn chat(&self, resource: Uuid, slot: &str, model: &str, prompt: &str) -> Result<Value, (u16, String)> {
        let secrets = self.secrets(resource).await;
        let data = secrets.get(slot).unwrap_or_else(|| panic!("no {slot} Secret for {}", resource.simple()));
        let base = data.get("OPENAI_BASE_URL").or_else(|| data.get("OPENAI_API_BASE_URLS")).unwrap();
        self.gateway.chat(base, &key_in(data).unwrap(), model, prompt).await
    }

    /// What Waldur was told about a resource, over this month and the one before, in case one just began.
    #[must_use]
    pub fn usages(&self, resource: Uuid) -> BTreeMap<String, Decimal> {
        let mut sums = BTreeMap::new();
        let now = self.sim_clock.now();
        let months: BTreeSet<String> = [now, now - SignedDuration::from_hours(1)].map(|at| at.strftime("%Y-%m").to_string()).into();
        for month in months {
            for (kind, value) in self.waldur.usages(resource, &month) {
                *sums.entry(kind).or_insert(Decimal::ZERO) += value;
            }
        }
        sums
    }

    /// Waits until the ledger shows these calls, and gives what it shows.
    pub async fn ledger_shows(&self, resource: Uuid, prompt_tokens: i64) -> Ledger {
        let id = resource.simple().to_string();
        eventually("the rows of all calls", async || {
            let ledger = self.gateway.ledger(&id).await;
            if ledger.prompt_tokens >= prompt_tokens { Ok(ledger) } else { Err(format!("{ledger:?}, expected {prompt_tokens}")) }
        })
        .await
    }

    /// Calls of the agents that change something.
    #[must_use]
    pub fn writes(&self) -> Vec<String> {
        // Asking what one may do is a POST, and changes nothing.
        let changes = |path: &str| !path.contains("selfsubjectaccessreviews");
        self.faults
            .calls()
            .into_iter()
            .filter(|call| call.method != "GET" && changes(&call.path))
            .map(|call| format!("{} {}", call.method, call.path))
            .collect()
    }

    /// All invariants of a world at rest. The gateway shows a key its former models for up to a minute.
    pub async fn check(&self) {
        eventually("a world as it must be", async || {
            let problems = self.problems().await;
            if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
        })
        .await;
    }

    /// What is not as it must be.
    pub async fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let teams = self.gateway.teams().await;
        let mut secret_values = vec![self.waldur.agent_token(), self.gateway.master.clone()];
        let mut known = BTreeSet::new();
        for resource in self.waldur.resources() {
            let id = resource.uuid.simple().to_string();
            let name = format!("resource {} ({})", resource.slug, resource.state);
            known.insert(id.clone());
            let team = teams.iter().find(|team| team["team_id"] == id.as_str());
            let keys = self.gateway.keys(&id).await;
            let secrets = self.secrets(resource.uuid).await;
            if resource.state != "OK" {
                if team.is_some() || !keys.is_empty() || !secrets.is_empty() {
                    problems.push(format!(
                        "{name} still has a team ({}), {} keys, Secrets {:?}",
                        team.is_some(),
                        keys.len(),
                        secrets.keys()
                    ));
                }
                continue;
            }
            let Some(team) = team else {
                problems.push(format!("{name} has no team"));
                continue;
            };
            if resource.backend_id != id {
                problems.push(format!("{name} has the backend_id {:?}", resource.backend_id));
            }
            if team["metadata"]["owner"] != self.owner.as_str() || team["budget_duration"] != "1mo" {
                problems.push(format!("{name} has the team {team}"));
            }
            let models: Vec<&str> = team["models"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            if models.is_empty() {
                problems.push(format!("{name}: an empty model list allows every model"));
            }
            let stored: BTreeMap<&String, String> = secrets.iter().filter_map(|(slot, data)| Some((slot, key_in(data)?))).collect();
            secret_values.extend(stored.values().cloned());
            let hashes: BTreeSet<String> = stored.values().map(|key| hash(key)).collect();
            let live: BTreeSet<String> = keys.iter().filter_map(|key| key["token"].as_str().map(str::to_owned)).collect();
            if stored.keys().map(|slot| slot.as_str()).collect::<Vec<_>>() != ["chat", "project"]
                || keys.len() != 2
                || hashes.len() != 2
                || hashes != live
            {
                problems.push(format!("{name}: Secrets {:?} hold {hashes:?}, the gateway {live:?}", stored.keys()));
            }
            if team["blocked"] != true && models != ["no-default-models"] {
                for (slot, key) in &stored {
                    let mut callable = self.gateway.models_of(key).await;
                    let mut expected = models.iter().map(|model| (*model).to_owned()).collect::<Vec<_>>();
                    callable.sort();
                    expected.sort();
                    if callable != expected {
                        problems.push(format!("{name}: the {slot} key may call {callable:?}, not {models:?}"));
                    }
                }
            }
            let shown = self.waldur.api_keys(resource.uuid);
            // Waldur has no call by which an agent ends a key of its own, so what counts is the newest.
            let newest = shown
                .iter()
                .filter(|key| key.state == "OK")
                .max_by_key(|key| key.client_id.rsplit('-').next().and_then(|n| n.parse::<u32>().ok()));
            if !shown.is_empty() && newest.map(|key| &key.key) != stored.get(&"project".to_owned()) {
                problems.push(format!(
                    "{name}: Waldur shows keys {:?}",
                    shown.iter().map(|key| (&key.client_id, &key.state)).collect::<Vec<_>>()
                ));
            }
            if resource.endpoints.is_empty() && resource.report.is_empty() {
                problems.push(format!("{name}: the customer sees neither endpoints nor a report"));
            }
        }
        for team in teams.iter().filter(|team| team["metadata"]["owner"] == self.owner.as_str()) {
            if !team["team_id"].as_str().is_some_and(|id| known.contains(id)) {
                problems.push(format!("team {} belongs to no resource", team["team_id"]));
            }
        }
        for call in self.faults.calls() {
            let body_may = call.peer == Peer::Kube || call.path.contains("/key/generate") || call.path.contains("report_created");
            if secret_values.iter().any(|secret| call.path.contains(secret.as_str()) || (!body_may && call.body.contains(secret.as_str())))
            {
                problems.push(format!("a secret leaked into {} {}", call.method, call.path.split('?').next().unwrap_or_default()));
            }
        }
        problems
    }
}

fn key_in(data: &BTreeMap<String, String>) -> Option<String> {
    data.get("OPENAI_API_KEY").or_else(|| data.get("OPENAI_API_KEYS")).cloned()
}

/// A fresh agent with a runtime of its own, which goes with all its tasks and sockets when the process is killed.
pub struct Process {
    runtime: Runtime,
    /// The agent.
    pub agent: Agent,
}

impl Process {
    /// One order beat to its end, or until a call on its way kills the process.
    pub async fn turn(&self, world: &RealWorld) -> Turn {
        let agent = self.agent.clone();
        let work = self.runtime.spawn(async move {
            agent.order_beat().await;
            agent.settle().await;
        });
        tokio::select! {
            ended = work => { ended.unwrap(); Turn::Ended }
            () = world.faults.killed() => Turn::Killed,
        }
    }

    /// Ends it, whatever it is doing.
    pub async fn kill(self) {
        let Self { runtime, agent } = self;
        tokio::task::spawn_blocking(move || {
            drop(agent);
            drop(runtime);
        })
        .await
        .unwrap();
    }

    /// Beats until no order is open; a killed process is replaced by a fresh one. Says how often that happened.
    pub async fn run_to_rest(mut self, world: &RealWorld) -> usize {
        let mut killed = 0;
        for _ in 0..60 {
            if self.turn(world).await == Turn::Killed {
                killed += 1;
                self.kill().await;
                self = world.process().await;
                continue;
            }
            if world.open_orders().is_empty() {
                self.kill().await;
                return killed;
            }
            world.advance(Duration::from_secs(60)).await;
        }
        panic!("still open: {:?}; waiting: {:?}", world.open_orders(), self.agent.schedule.waiting());
    }
}

/// How a beat ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// By itself.
    Ended,
    /// The process was killed.
    Killed,
}

/// Passes every request on, whatever it is.
#[derive(Clone)]
struct Target {
    base: Url,
    client: reqwest::Client,
}

async fn relay(base: Url, client: reqwest::Client, peer: Peer, faults: &Faults) -> Running {
    let router = axum::Router::new().fallback(forward).with_state(Target { base, client });
    serve(router, peer, faults.clone(), SimClock::real(), None).await.unwrap()
}

async fn forward(State(target): State<Target>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let mut url = target.base.clone();
    url.set_path(parts.uri.path());
    url.set_query(parts.uri.query());
    let mut headers = parts.headers;
    for name in ["host", "content-length", "connection", "transfer-encoding"] {
        headers.remove(name);
    }
    let answer = async {
        let answer = target.client.request(parts.method, url).headers(headers).body(body).send().await?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        Ok::<_, reqwest::Error>((status, headers, answer.bytes().await?))
    };
    match answer.await {
        Ok((status, mut headers, body)) => {
            for name in ["connection", "transfer-encoding", "content-length"] {
                headers.remove(name);
            }
            let mut response = Response::new(Body::from(body));
            *response.status_mut() = status;
            *response.headers_mut() = headers;
            response
        }
        Err(error) => {
            let mut response = Response::new(Body::from(format!("the relay got no answer: {error}")));
            *response.status_mut() = reqwest::StatusCode::BAD_GATEWAY;
            response
        }
    }
}

/// A real LiteLLM proxy, as its administrator and its users see it.
pub struct Gateway {
    /// Where it listens.
    pub url: Url,
    /// Its master key.
    pub master: String,
    relay: Running,
    http: reqwest::Client,
}

/// What the daily rows say about one team, over the last days.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Prompt tokens.
    pub prompt_tokens: i64,
    /// Completion tokens.
    pub completion_tokens: i64,
    /// Spend.
    pub spend: Decimal,
    /// Prompt and completion tokens by public model name.
    pub models: BTreeMap<String, (i64, i64)>,
}

impl Ledger {
    /// What Waldur must hold where it has these components: units of a thousand tokens and spend, each rounded half up to two
    /// decimals; zeros need not be sent. The offering's loop adds components per model, which hold the same by model.
    #[must_use]
    pub fn amounts(&self, per_model: bool) -> BTreeMap<String, Decimal> {
        let rounded = |value: Decimal| value.round_dp_with_strategy(2, RoundingStrategy::MidpointAwayFromZero).normalize();
        let thousands = |tokens: i64| rounded(Decimal::new(tokens, 3));
        let mut amounts = vec![
            ("input_tokens".to_owned(), thousands(self.prompt_tokens)),
            ("output_tokens".to_owned(), thousands(self.completion_tokens)),
            ("spend".to_owned(), rounded(self.spend)),
        ];
        if per_model {
            for (model, (prompt, completion)) in &self.models {
                amounts.push((format!("{model}:input"), thousands(*prompt)));
                amounts.push((format!("{model}:output"), thousands(*completion)));
            }
        }
        amounts.into_iter().filter(|(_, value)| !value.is_zero()).collect()
    }
}

impl Gateway {
    async fn reach(variant: Variant, faults: &Faults) -> Self {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build().unwrap();
        let url = variant.url();
        let relay = relay(url.clone(), http.clone(), Peer::LiteLlm, faults).await;
        Self { url, master: told("LITELLM_MASTER_KEY"), relay, http }
    }

    /// A call as somebody; the status and the body.
    pub async fn ask(&self, method: Method, url: &str, key: &str, body: Option<Value>) -> (u16, Value) {
        let mut request = self.http.request(method, url).bearer_auth(key);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// A read as its administrator.
    pub async fn read(&self, path: &str) -> Value {
        let (status, body) = self.ask(Method::GET, self.url.join(path).unwrap().as_str(), &self.master, None).await;
        assert_eq!(status, 200, "GET {path}: {body}");
        body
    }

    /// A write as its administrator.
    pub async fn write(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.ask(Method::POST, self.url.join(path).unwrap().as_str(), &self.master, Some(body)).await;
        assert_eq!(status, 200, "POST {path}: {answer}");
        answer
    }

    /// A chat; the refusal's status, with its type and message.
    pub async fn chat(&self, base: &str, key: &str, model: &str, prompt: &str) -> Result<Value, (u16, String)> {
        let body = json!({"model": model, "messages": [{"role": "user", "content": prompt}]});
        let (status, answer) = self.ask(Method::POST, &format!("{base}/chat/completions"), key, Some(body)).await;
        if status == 200 {
            return Ok(answer);
        }
        let error = &answer["error"];
        Err((status, format!("{} {}", error["type"].as_str().unwrap_or_default(), error["message"].as_str().unwrap_or_default())))
    }

    /// An embedding of a text; the refusal's status.
    pub async fn embed(&self, base: &str, key: &str, model: &str, text: &str) -> Result<Value, u16> {
        let (status, answer) =
            self.ask(Method::POST, &format!("{base}/embeddings"), key, Some(json!({"model": model, "input": text}))).await;
        if status == 200 { Ok(answer) } else { Err(status) }
    }

    /// The models a key may call.
    pub async fn models_of(&self, key: &str) -> Vec<String> {
        let (_, answer) = self.ask(Method::GET, self.url.join("v1/models").unwrap().as_str(), key, None).await;
        answer["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str().map(str::to_owned)).collect()
    }

    /// Every team.
    pub async fn teams(&self) -> Vec<Value> {
        let mut teams = Vec::new();
        for page in 1.. {
            let answer = self.read(&format!("v2/team/list?page={page}&page_size=100&sort_by=team_id")).await;
            let rows = answer["teams"].as_array().unwrap().clone();
            let last = answer["total_pages"].as_u64().is_none_or(|pages| page >= pages);
            teams.extend(rows);
            if last {
                break;
            }
        }
        teams
    }

    /// One team.
    pub async fn team(&self, id: &str) -> Option<Value> {
        let answer = self.read(&format!("v2/team/list?team_id={id}")).await;
        answer["teams"].as_array().unwrap().iter().find(|team| team["team_id"] == id).cloned()
    }

    /// The live keys of a team.
    pub async fn keys(&self, team: &str) -> Vec<Value> {
        let answer = self.read(&format!("key/list?team_id={team}&return_full_object=true&size=100")).await;
        answer["keys"].as_array().unwrap().iter().filter(|key| key["team_id"] == team).cloned().collect()
    }

    /// What the daily rows of the last days say about a team.
    pub async fn ledger(&self, team: &str) -> Ledger {
        let day = |hours: i64| (wall_clock() + SignedDuration::from_hours(hours)).strftime("%Y-%m-%d").to_string();
        let answer =
            self.read(&format!("team/daily/activity?team_ids={team}&start_date={}&end_date={}&page_size=1000", day(-48), day(24))).await;
        assert_eq!(answer["metadata"]["has_more"], false, "{answer}");
        let mut ledger = Ledger::default();
        for row in answer["results"].as_array().unwrap() {
            let metrics = &row["metrics"];
            ledger.prompt_tokens += metrics["prompt_tokens"].as_i64().unwrap();
            ledger.completion_tokens += metrics["completion_tokens"].as_i64().unwrap();
            let spend = metrics["spend"].to_string();
            ledger.spend += Decimal::from_scientific(&spend).or_else(|_| spend.parse()).unwrap();
            for (model, part) in row["breakdown"]["model_groups"].as_object().unwrap() {
                let sums = ledger.models.entry(model.clone()).or_default();
                sums.0 += part["metrics"]["prompt_tokens"].as_i64().unwrap();
                sums.1 += part["metrics"]["completion_tokens"].as_i64().unwrap();
            }
        }
        ledger
    }
}

/// The Kubernetes API, as its administrator sees it, with two namespaces of this world's own.
pub struct Cluster {
    /// The namespace of the connection Secrets.
    pub chat: String,
    /// The namespace of the project keys.
    pub keys: String,
    /// The namespace of the agents themselves.
    pub own: String,
    url: Url,
    http: reqwest::Client,
    relay: Option<Running>,
}

/// One verb of one rule of a Role, as it is deployed.
#[derive(Clone, Debug)]
pub struct Right {
    /// Where the Role is.
    pub namespace: String,
    /// The verb.
    pub verb: String,
    /// On what.
    pub resource: String,
    group: String,
    only: Option<String>,
    role: String,
    rules: Value,
    rule: usize,
}

impl Right {
    /// The rules of the Role without this one verb.
    fn rules_without(&self) -> Value {
        let mut rules = self.rules.as_array().unwrap().clone();
        let verbs = rules[self.rule]["verbs"].as_array_mut().unwrap();
        verbs.retain(|verb| *verb != self.verb);
        if verbs.is_empty() {
            rules.remove(self.rule);
        }
        rules.into()
    }
}

/// One of the deployed manifests of rights.
fn manifest(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests").join(name);
    fs::read_to_string(path).unwrap()
}

impl Cluster {
    async fn reach(seed: u64, folder: &TempDir, faults: Option<&Faults>) -> Self {
        let authority = fs::read(told("KUBE_CA_FILE")).unwrap();
        let certificate = reqwest::Certificate::from_pem(&authority).unwrap();
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([certificate]).timeout(Duration::from_secs(30)).build().unwrap();
        let url: Url = told("KUBE_URL").parse().unwrap();
        let relay = match faults {
            Some(faults) => Some(relay(url.clone(), http.clone(), Peer::Kube, faults).await),
            None => None,
        };
        let cluster = Self {
            chat: format!("open-webui-{seed:x}"),
            keys: format!("llm-keys-{seed:x}"),
            own: format!("llm-access-{seed:x}"),
            url,
            http,
            relay,
        };
        for namespace in [&cluster.chat, &cluster.keys, &cluster.own] {
            let body = json!({"metadata": {"name": namespace}});
            cluster.write(Method::POST, "api/v1/namespaces", body).await;
        }
        // The rights as they are deployed, in the namespaces of this world and for the account that its agents have.
        let rights = ["role-secrets.yaml", "role-lease.yaml", "role-events.yaml"]
            .map(manifest)
            .join("---\n")
            .replace("    name: llm-access-agent\n    namespace: llm-access\n", "    name: agent\n    namespace: the-agents\n")
            .replace("  namespace: llm-keys\n", &format!("  namespace: {}\n", cluster.keys))
            .replace("  namespace: open-webui\n", &format!("  namespace: {}\n", cluster.chat))
            .replace("  namespace: llm-access\n", &format!("  namespace: {}\n", cluster.own))
            .replace("    namespace: the-agents\n", "    namespace: llm-access\n");
        let file = folder.path().join("rights.yml");
        fs::write(&file, rights).unwrap();
        cluster.kubectl(&["apply", "-f", file.to_str().unwrap()], "").await;
        for right in cluster.rights().await {
            cluster.await_right(&right, true).await;
        }
        let (server, trust) = match &cluster.relay {
            Some(relay) => (relay.url.to_string(), String::new()),
            None => (cluster.url.to_string(), format!(", certificate-authority: {}", told("KUBE_CA_FILE"))),
        };
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: test, cluster: {{server: \"{server}\"{trust}}}}}]\n\
             users: [{{name: agent, user: {{token: {}}}}}]\ncontexts: [{{name: agent, context: {{cluster: test, user: agent}}}}]\n",
            told("KUBE_AGENT_TOKEN")
        );
        fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
        cluster
    }

    async fn ask(&self, method: Method, path: &str, token: &str, kind: &str, body: Option<&Value>) -> (u16, Value) {
        let mut request = self.http.request(method, self.url.join(path).unwrap()).bearer_auth(token);
        if let Some(body) = body {
            request = request.header("content-type", kind).body(body.to_string());
        }
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    /// A read as the administrator; nothing where there is none.
    pub async fn read(&self, path: &str) -> Option<Value> {
        let (status, body) = self.ask(Method::GET, path, &told("KUBE_ADMIN_TOKEN"), "", None).await;
        assert!(matches!(status, 200 | 404), "GET {path}: {status} {body}");
        (status == 200).then_some(body)
    }

    /// A write as the administrator.
    pub async fn write(&self, method: Method, path: &str, body: Value) -> Value {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let (status, answer) = self.ask(method.clone(), path, &told("KUBE_ADMIN_TOKEN"), kind, Some(&body)).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    /// Every right that the agent has.
    pub async fn rights(&self) -> Vec<Right> {
        let mut rights = Vec::new();
        for namespace in [&self.chat, &self.keys, &self.own] {
            let roles = self.read(&format!("apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles")).await.unwrap();
            for role in roles["items"].as_array().unwrap() {
                for (n, rule) in role["rules"].as_array().unwrap().iter().enumerate() {
                    let one = |key: &str| match rule[key].as_array().unwrap().as_slice() {
                        [one] => one.as_str().unwrap().to_owned(),
                        other => panic!("{key}: {other:?}"),
                    };
                    rights.extend(rule["verbs"].as_array().unwrap().iter().map(|verb| Right {
                        namespace: namespace.clone(),
                        verb: verb.as_str().unwrap().to_owned(),
                        resource: one("resources"),
                        group: one("apiGroups"),
                        only: rule["resourceNames"][0].as_str().map(str::to_owned),
                        role: role["metadata"]["name"].as_str().unwrap().to_owned(),
                        rules: role["rules"].clone(),
                        rule: n,
                    }));
                }
            }
        }
        rights
    }

    /// Takes one right away, and waits until it is gone.
    pub async fn take(&self, right: &Right) {
        self.set_rules(right, right.rules_without()).await;
        self.await_right(right, false).await;
    }

    /// Gives it back, and waits until it is there.
    pub async fn give_back(&self, right: &Right) {
        self.set_rules(right, right.rules.clone()).await;
        self.await_right(right, true).await;
    }

    async fn set_rules(&self, right: &Right, rules: Value) {
        let path = format!("apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles/{}", right.namespace, right.role);
        self.write(Method::PATCH, &path, json!({"rules": rules})).await;
    }

    async fn await_right(&self, right: &Right, allowed: bool) {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {
            "namespace": right.namespace, "verb": right.verb, "group": right.group, "resource": right.resource, "name": right.only,
        }}});
        eventually("the change of rights", async || {
            let path = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
            let (_, answer) = self.as_agent(Method::POST, path, Some(&review)).await;
            if answer["status"]["allowed"] == allowed { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
    }

    /// A call with the agent's own token; the status and the body.
    pub async fn as_agent(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        self.ask(method, path, &told("KUBE_AGENT_TOKEN"), kind, body).await
    }

    /// A Secret with everything on it.
    pub async fn secret(&self, namespace: &str, name: &str) -> Option<Value> {
        self.read(&format!("api/v1/namespaces/{namespace}/secrets/{name}")).await
    }

    /// The Secrets of a namespace.
    pub async fn list(&self, namespace: &str) -> Vec<Value> {
        let answer = self.read(&format!("api/v1/namespaces/{namespace}/secrets")).await.unwrap();
        answer["items"].as_array().unwrap().clone()
    }

    /// `kubectl` as the administrator, with `editor` for its edit command.
    pub async fn kubectl(&self, arguments: &[&str], editor: &str) -> String {
        let output = Command::new(told("KUBECTL"))
            .args(["--kubeconfig", &told("KUBECONFIG"), "--context", "admin"])
            .args(arguments)
            .env("KUBE_EDITOR", editor)
            .output()
            .await
            .unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments:?}: {text}");
        text
    }

    async fn secrets_of(&self, resource: &str) -> BTreeMap<String, BTreeMap<String, String>> {
        let mut found = BTreeMap::new();
        for namespace in [&self.chat, &self.keys] {
            for secret in self.list(namespace).await {
                let labels = &secret["metadata"]["labels"];
                if labels["llm-access.io/resource"] != resource {
                    continue;
                }
                let data = secret["data"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, value)| (name.clone(), decode(value.as_str().unwrap())))
                    .collect();
                let slot = labels["llm-access.io/slot"].as_str().unwrap().to_owned();
                assert!(found.insert(slot, data).is_none(), "two Secrets for one slot of {resource}");
            }
        }
        found
    }
}

fn decode(text: &str) -> String {
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).unwrap()).unwrap()
}

/// The program that is deployed, built by `make test-real` before the suites.
#[must_use]
pub fn program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folder = own.parent().and_then(Path::parent).unwrap();
    let program = folder.join("llm-access-agent");
    assert!(program.exists(), "{} is not there: cargo build -p llm-access-agent", program.display());
    program
}

/// How a command ended: its exit code, what it printed, and what it said beside that.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The exit code.
    pub code: Option<i32>,
    /// Standard output.
    pub printed: String,
    /// Standard error: log and last words.
    pub said: String,
}

/// Runs a one-off command of the program.
pub async fn command(config: &Path, arguments: &[&str]) -> Outcome {
    let output = Command::new(program()).arg("--config").arg(config).args(arguments).output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Outcome { code: output.status.code(), printed: text(&output.stdout), said: text(&output.stderr) }
}

/// The program, running with this configuration file; what it says goes into `log`.
#[must_use]
pub fn started(config: &Path, log: &Path) -> Program {
    let mut command = program::command(program());
    command.arg("--config").arg(config).arg("run");
    Program::spawn(log, command)
}
