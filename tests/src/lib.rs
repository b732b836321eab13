//! End-to-end suites: the real agent against simulators and real peers.
//!
//! [`World`] is one environment: the three simulators, a clock that tests move, and as many agents as a test wants, each of
//! them a fresh process as far as the agent's memory goes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::missing_panics_doc, reason = "this crate is test code")]

pub mod checker;
pub mod crash;
pub mod decoders;
pub mod eventful;
pub mod hostile;
pub mod identity;
pub mod port;
pub mod program;
pub mod promql;
#[cfg(feature = "real")]
pub mod real;
pub mod sabotage;
pub mod worlds;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use llm_access_agent::agent::Agent;
use llm_access_agent::clock::Clock;
use llm_access_agent::config::{self, Config};
use llm_access_fixtures::clock::SimClock;
use llm_access_fixtures::faults::{Faults, Peer};
use llm_access_fixtures::kube::Kube;
use llm_access_fixtures::litellm::{self, LiteLlm};
use llm_access_fixtures::waldur::{self, Profile, Project, Waldur};
use tempfile::TempDir;
use uuid::Uuid;

pub use llm_access_fixtures as fixtures;

/// Every server generation.
pub const PROFILES: [Profile; 3] = [Profile::Y2024, Profile::V8_0, Profile::Late2026];

/// Where an agent of a test keeps Secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// The Kubernetes simulator, chat and project keys in two namespaces.
    Kube,
    /// A folder.
    Directory,
}

/// The namespace of the connection Secrets.
pub const CHAT_NAMESPACE: &str = "open-webui";
/// The namespace of the project keys.
pub const KEY_NAMESPACE: &str = "llm-keys";

/// One environment.
pub struct World {
    /// The simulators' time.
    pub sim_clock: SimClock,
    /// The agents' time; [`World::advance`] moves both.
    pub clock: Clock,
    /// The world's faults and the log of the agents' calls.
    pub faults: Faults,
    /// Waldur.
    pub waldur: Waldur,
    /// The gateway.
    pub gateway: LiteLlm,
    /// The Kubernetes API.
    pub kube: Kube,
    /// The offering that is sold.
    pub offering: Uuid,
    /// A project that orders.
    pub project: Project,
    /// Where Secrets are kept.
    pub store: Store,
    /// The owner string.
    pub owner: String,
    /// Waldur's generation.
    pub profile: Profile,
    /// Sees every call of the agents, and notes what may never be. What it noted fails the test in which the world ends.
    pub watch: Arc<checker::Watch>,
    folder: TempDir,
    reserved: Mutex<Vec<port::ReservedPort>>,
    /// Why the test does not leave it as it must be at rest.
    trouble: Mutex<Option<&'static str>>,
}

impl Drop for World {
    fn drop(&mut self) {
        // The watch holds the simulators, and they hold the faults.
        self.faults.set_witness(None);
        if std::thread::panicking() {
            return;
        }
        let problems = self.watch.problems();
        assert!(problems.is_empty(), "an agent did what it may never do:\n{}", problems.join("\n"));
        if self.trouble.lock().unwrap().is_none() {
            let problems = checker::in_the_end(self);
            assert!(
                problems.is_empty(),
                "the test leaves a world that is not as it must be; where it means to, `ends_in_trouble` says why:\n{}",
                problems.join("\n")
            );
        }
    }
}

/// The start of every world: a quiet moment inside a month.
#[must_use]
pub fn start_time() -> Timestamp {
    "2026-11-10T09:00:00Z".parse().unwrap()
}

/// The models every world sells, with prices per token.
const MODELS: [(&str, Option<&str>, Option<&str>); 4] = [
    ("kestrel-8b", Some("0.00000021"), Some("0.00000085")),
    ("heron-70b", Some("0.000001"), Some("0.000002")),
    ("qwen2.5-0.5b", None, None),
    ("qwen3-embedding-0-6b", Some("0.00000002"), None),
];

impl World {
    /// A world with Secrets in the Kubernetes simulator.
    pub async fn new(profile: Profile) -> Self {
        Self::with_store(profile, Store::Kube).await
    }

    /// A world with a chosen Secret store.
    pub async fn with_store(profile: Profile, store: Store) -> Self {
        Self::in_time(profile, store, SimClock::at(start_time()), Clock::manual(start_time())).await
    }

    /// A world in real time, for agents that run as programs of their own.
    pub async fn in_real_time(profile: Profile, store: Store) -> Self {
        Self::in_time(profile, store, SimClock::real(), Clock::system()).await
    }

    async fn in_time(profile: Profile, store: Store, sim_clock: SimClock, clock: Clock) -> Self {
        rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
        let faults = Faults::new();
        let waldur = Waldur::start(waldur::Options { profile, clock: sim_clock.clone(), faults: faults.clone(), listen: None }).await;
        let gateway = LiteLlm::start(litellm::Options { clock: sim_clock.clone(), faults: faults.clone(), listen: None }).await.unwrap();
        let kube = Kube::start(sim_clock.clone(), faults.clone(), None).await.unwrap();
        kube.add_namespace(CHAT_NAMESPACE);
        kube.add_namespace(KEY_NAMESPACE);
        for (name, input, output) in MODELS {
            gateway.remove_model(name);
            gateway.add_model(name, input, output);
        }
        let offering = waldur.add_offering("Shared LLM access");
        waldur.set_models(offering, &["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "all"]);
        let project = waldur.add_project("Seabird Acoustics");
        let folder = tempfile::tempdir().unwrap();
        let watch = checker::Watch::new(&waldur, &gateway, &kube, folder.path().join("secrets"));
        faults.set_witness(Some(watch.clone()));
        let owner = "icarus".into();
        let (reserved, trouble) = (Mutex::default(), Mutex::default());
        let world = Self {
            clock,
            sim_clock,
            faults,
            waldur,
            gateway,
            kube,
            offering,
            project,
            store,
            owner,
            profile,
            watch,
            folder,
            reserved,
            trouble,
        };
        world.write("waldur-token", &world.waldur.agent_token());
        world.write("gateway-key", &world.gateway.master_key());
        world.write("catalogue.yml", &catalogue(&["kestrel-8b", "heron-70b", "qwen2.5-0.5b"]));
        world
    }

    /// Writes a file into the world's folder.
    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// A path in the world's folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// An address at which nobody listens while this world is there, unless the test tells somebody to.
    pub fn nobody(&self) -> SocketAddr {
        let port = port::ReservedPort::take();
        let address = port.address;
        self.reserved.lock().unwrap().push(port);
        address
    }

    /// The folder of the directory store.
    #[must_use]
    pub fn secrets_folder(&self) -> PathBuf {
        self.path("secrets")
    }

    /// The configuration file of an agent, with `more` at its end.
    #[must_use]
    pub fn config_text(&self, more: &str) -> String {
        self.config_text_for(&[self.offering], more)
    }

    /// The same for several offerings.
    #[must_use]
    pub fn config_text_for(&self, offerings: &[Uuid], more: &str) -> String {
        self.watch.knows_owner(&self.owner);
        let folder = self.folder.path().display();
        let secrets = match self.store {
            Store::Kube => format!(
                "{{store: kubernetes, api_url: {}, timeout: 400ms, chat_namespace: {CHAT_NAMESPACE}, key_namespace: {KEY_NAMESPACE}}}",
                self.kube.url()
            ),
            Store::Directory => format!("{{store: directory, path: {}}}", self.secrets_folder().display()),
        };
        let offerings: String = offerings
            .iter()
            .map(|uuid| {
                format!(
                    "  - uuid: {uuid}\n    always_include: [qwen3-embedding-0-6b]\n    limits: {{max_budget: {{default: 20, max: 1000}}, tpm_limit: {{default: 100000}}, rpm_limit: {{default: 600}}}}\n"
                )
            })
            .collect();
        format!(
            "owner: {}\nwaldur: {{api_url: {}, token_file: {folder}/waldur-token, timeout: 400ms}}\n\
             gateway: {{url: {}, public_url: https://llm.example.org, key_file: {folder}/gateway-key, timeout: 400ms}}\n\
             webui: {{url: https://chat.example.org}}\ncatalogue: {{file: {folder}/catalogue.yml}}\nsecrets: {secrets}\nofferings:\n{offerings}{more}",
            self.owner,
            self.waldur.api_url(),
            self.gateway.url(),
        )
    }

    /// The configuration of an agent.
    #[must_use]
    pub fn config(&self, more: &str) -> Config {
        self.parse(&self.config_text(more))
    }

    /// Reads a configuration text as the program does.
    #[must_use]
    pub fn parse(&self, text: &str) -> Config {
        let path = self.write("config.yml", text);
        let config = config::load(Some(&path), &[]).unwrap_or_else(|errors| panic!("{errors}\n{text}")).config;
        self.watch.knows(&config);
        config
    }

    /// A fresh agent: what a restart leaves.
    pub async fn agent(&self) -> Agent {
        self.agent_with("").await
    }

    /// A fresh agent with more configuration.
    pub async fn agent_with(&self, more: &str) -> Agent {
        Agent::new(self.config(more), self.clock.clone()).await.unwrap()
    }

    /// A fresh agent that no busy machine and no held call makes give up.
    pub async fn patient(&self) -> Agent {
        self.patient_with(&self.config_text("")).await
    }

    /// The same from a whole configuration text.
    pub async fn patient_with(&self, text: &str) -> Agent {
        assert!(text.contains("timeout: 400ms"), "{text}");
        Agent::new(self.parse(&text.replace("timeout: 400ms", "timeout: 30s")), self.clock.clone()).await.unwrap()
    }

    /// Moves the time of everything.
    pub fn advance(&self, by: Duration) {
        self.sim_clock.advance(by);
        self.clock.advance(by);
    }

    /// Sets the time of everything.
    pub fn set_time(&self, to: &str) {
        let to: Timestamp = to.parse().unwrap();
        self.sim_clock.set(to);
        self.clock.set(to);
    }

    /// One order beat, and the work it begins to its end.
    pub async fn beat(&self, agent: &Agent) {
        let _pass = self.watch.pass();
        agent.order_beat().await;
        agent.settle().await;
    }

    /// One slow beat, and the repairs it begins to their end.
    pub async fn slow_beat(&self, agent: &Agent) {
        let _pass = self.watch.pass();
        drop(agent.resource_beat().await);
        agent.settle().await;
    }

    /// Beats, with time passing, until no order is open; at most `beats`.
    pub async fn run_to_rest(&self, agent: &Agent, beats: usize) {
        for _ in 0..beats {
            self.beat(agent).await;
            if self.open_orders().is_empty() {
                return;
            }
            self.advance(Duration::from_secs(60));
        }
        let waiting = agent.schedule.waiting();
        panic!("still open after {beats} beats: {:?}; waiting: {waiting:?}; conditions: {:?}", self.open_orders(), agent.conditions.all());
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

    /// A customer orders `models` with a budget of 50.
    pub fn order(&self, name: &str, models: &[&str]) -> (Uuid, Uuid) {
        self.waldur.order(self.offering, &self.project, name, models, &[("max_budget", "50")])
    }

    /// Orders and sees it through.
    pub async fn sold(&self, agent: &Agent, name: &str, models: &[&str]) -> Uuid {
        let (order, resource) = self.order(name, models);
        self.run_to_rest(agent, 5).await;
        assert_eq!(self.waldur.order_state(order), "done");
        resource
    }

    /// The Secrets of a resource: variables by slot.
    #[must_use]
    pub fn secrets(&self, resource: Uuid) -> BTreeMap<String, BTreeMap<String, String>> {
        let id = resource.simple().to_string();
        match self.store {
            Store::Kube => self
                .kube
                .secrets()
                .into_iter()
                .filter(|secret| secret.labels.get("llm-access.io/resource") == Some(&id))
                .map(|secret| (slot_of(&secret.name), secret.data))
                .collect(),
            Store::Directory => read_env_files(&self.secrets_folder(), &id),
        }
    }

    /// The key in a Secret of a resource.
    #[must_use]
    pub fn key(&self, resource: Uuid, slot: &str) -> String {
        let secrets = self.secrets(resource);
        self.key_in(&secrets, slot).unwrap_or_else(|| panic!("no {slot} key for {}; there are {:?}", resource.simple(), secrets.keys()))
    }

    pub(crate) fn key_in(&self, secrets: &BTreeMap<String, BTreeMap<String, String>>, slot: &str) -> Option<String> {
        let data = secrets.get(slot)?;
        data.get("OPENAI_API_KEY").or_else(|| data.get("OPENAI_API_KEYS")).cloned()
    }

    /// Calls of the agents that change something, to one peer or all.
    #[must_use]
    pub fn writes(&self, peer: Option<Peer>) -> Vec<String> {
        self.faults
            .calls()
            .into_iter()
            .filter(|call| call.method != "GET" && peer.is_none_or(|p| p == call.peer))
            .map(|call| format!("{} {}", call.method, call.path))
            .collect()
    }

    /// The test leaves this world as no agent may leave one: by hand, or with a fault that is still there. Then only what agents
    /// did is judged when it is dropped, and not what there is.
    pub fn ends_in_trouble(&self, why: &'static str) {
        self.trouble.lock().unwrap().replace(why);
    }

    /// All invariants of a world at rest.
    pub fn check(&self) {
        checker::check(self);
    }
}

/// A catalogue of chat models, with the embedder every world has, at the gateway's prices.
#[must_use]
pub fn catalogue(models: &[&str]) -> String {
    let mut text = String::from("inference_models:\n");
    for name in models.iter().chain(&["qwen3-embedding-0-6b"]) {
        let runtime = if *name == "qwen3-embedding-0-6b" { ", runtime: tei" } else { "" };
        let (_, input, output) = MODELS.iter().find(|(known, ..)| known == name).copied().unwrap_or((name, None, None));
        let price = |side: &str, price: Option<&str>| price.map(|price| format!("{side}_cost_per_token: {price}"));
        let prices: Vec<String> = [price("input", input), price("output", output)].into_iter().flatten().collect();
        let info = if prices.is_empty() { String::new() } else { format!(", litellm_model_info: {{{}}}", prices.join(", ")) };
        text.push_str(&format!("  - {{name: {name}, served_name: {name}{runtime}{info}}}\n"));
    }
    text
}

fn slot_of(name: &str) -> String {
    if name.starts_with("llm-webui-") { "chat" } else { "project" }.into()
}

fn read_env_files(folder: &Path, resource: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for entry in entries.flatten() {
        let name = entry.file_name().into_string().unwrap();
        if !name.ends_with(".env") {
            continue;
        }
        let Ok(text) = fs::read_to_string(entry.path()) else { continue };
        if !text.contains(resource) {
            continue;
        }
        let data = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once('='))
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect();
        found.insert(slot_of(&name), data);
    }
    found
}
