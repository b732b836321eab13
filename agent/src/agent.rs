//! The agent: its peers, what it learnt about them, and what it remembers between passes.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use url::Url;
use uuid::Uuid;

use crate::catalogue::{self, Catalogue, Remembered, View, Watch};
use crate::clock::Clock;
use crate::conditions::Conditions;
use crate::config::{Config, OfferingConfig, SecretsConfig, TokenUnit, WaldurAuth};
use crate::events::Events;
use crate::features::{Feature, Features};
use crate::gate::{Gates, Peer};
use crate::plan::{Obstacle, Rules};
use crate::schedule::Schedule;
use crate::secret_file::{SecretFile, SecretRef};
use crate::secrets::{Directory, Kubernetes, Namespaces, SecretStore, StoreError};

/// A peer that fails this often in a row, though it can be reached, is a condition of its own.
const FAILURES: u32 = 5;

/// The User-Agent of every call to a peer.
pub const USER_AGENT: &str = concat!("llm-access-agent/", env!("CARGO_PKG_VERSION"));

/// The longest wait for a connection to a peer, below the time for the whole call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Cheap to clone; all clones are one agent.
#[derive(Clone)]
pub struct Agent(Arc<Inner>);

/// What an [`Agent`] is made of.
pub struct Inner {
    /// Settings.
    pub config: Config,
    /// Time.
    pub clock: Clock,
    /// Waldur.
    pub waldur: waldur_client::Client,
    /// The gateway.
    pub gateway: litellm_client::Client,
    /// Where Secrets are kept.
    pub secrets: SecretStore,
    /// What the peers can do.
    pub features: Features,
    /// What is wrong.
    pub conditions: Conditions,
    /// Peers to spare.
    pub gates: Gates,
    /// Waiting orders and busy resources.
    pub schedule: Arc<Schedule>,
    /// Bounds the work in flight.
    pub workers: Arc<Semaphore>,
    /// Bounds the repairs in flight, apart, so that a thousand of them do not stand before a new order.
    pub repairers: Arc<Semaphore>,
    /// The work in flight.
    pub tasks: TaskTracker,
    /// Whether this replica may act; set by whoever holds the Lease.
    pub leading: std::sync::atomic::AtomicBool,
    /// Progress of the loops.
    pub progress: crate::http::Progress,
    /// What the loops last saw, for the status page.
    pub seen: crate::page::Seen,
    watch: Mutex<Watch>,
    memory: Mutex<Memory>,
}

/// Remembered between passes; losing it costs a repeat, never a mistake.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The catalogue as it was last read.
    read: Option<Arc<Catalogue>>,
    /// What the offerings know about models, by offering.
    remembered: HashMap<Uuid, Remembered>,
    /// Offerings that Waldur governs keys for one by one.
    pub(crate) governed: HashMap<Uuid, bool>,
    /// When the mark on a team was restored.
    mark_repairs: HashMap<Uuid, Vec<Timestamp>>,
    /// The latest reading of a usage that must be read twice: when, and what.
    pub(crate) readings: HashMap<Uuid, (Timestamp, String)>,
    /// Termination orders whose usage is reported.
    pub(crate) billed: HashSet<Uuid>,
    /// Erred orders that something else was ordered after.
    pub(crate) passed: HashSet<Uuid>,
    /// What Waldur lists of keys.
    pub(crate) api_keys: crate::observe::ApiKeyLists,
    /// Where the next pass goes on asking about things without a living resource.
    pub(crate) orphan_cursor: usize,
    /// How often an order was taken up again after it erred.
    pub(crate) heals: HashMap<Uuid, u32>,
    /// What is known to be reported.
    pub(crate) usage: crate::usage::Memory,
    /// Changes of deployments that the gateway refused, or took and did not keep, by deployment: what, when, and why.
    pub(crate) registrations: HashMap<String, (String, Timestamp, String)>,
    /// Deployments that were restarted for their Secrets, or could not be.
    pub(crate) restarts: HashMap<(String, String), crate::restart::Restarted>,
}

impl std::ops::Deref for Agent {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// Why a step did not succeed, and so what may be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Trying again later can help.
    Transient {
        /// Who failed.
        peer: Peer,
        /// What happened.
        message: String,
        /// What the peer asked us to wait.
        retry_after: Option<Duration>,
        /// Surely nothing was sent: the peer is down.
        unreachable: bool,
    },
    /// Our own credential or rights: a fault of the site, not of any order.
    Credential {
        /// Who refused.
        peer: Peer,
        /// What it said.
        message: String,
    },
    /// Our credential is good but one right is missing: a fault of the site as well, and other calls are not affected.
    Forbidden {
        /// Who refused.
        peer: Peer,
        /// What was refused, the same words for every order that meets it.
        right: String,
        /// What it said.
        message: String,
    },
    /// The world moved: look again.
    Conflict {
        /// What happened.
        message: String,
    },
    /// The peer will refuse this again.
    Refused {
        /// Who refused.
        peer: Peer,
        /// What it said.
        message: String,
    },
    /// Only a person can resolve it.
    Blocked(Obstacle),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transient { message, .. }
            | Self::Conflict { message }
            | Self::Credential { message, .. }
            | Self::Forbidden { message, .. }
            | Self::Refused { message, .. } => f.write_str(message),
            Self::Blocked(obstacle) => obstacle.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Obstacle> for Failure {
    fn from(obstacle: Obstacle) -> Self {
        Self::Blocked(obstacle)
    }
}

impl From<waldur_client::Error> for Failure {
    fn from(error: waldur_client::Error) -> Self {
        use waldur_client::{Class, ErrorKind};
        let (peer, message) = (Peer::Waldur, error.to_string());
        match error.class() {
            Class::Credential if error.status() == Some(403) => {
                Self::Forbidden { peer, right: format!("{} {}", error.method, without_ids(&error.path)), message }
            }
            Class::Credential => Self::Credential { peer, message },
            Class::Conflict => Self::Conflict { message },
            Class::Refused | Class::NoSuchRoute => Self::Refused { peer, message },
            // An object that cannot be seen may only be out of sight: rights can come back.
            Class::NotFound | Class::Transient => {
                let unreachable = matches!(error.kind, ErrorKind::Unreachable { .. } | ErrorKind::Redirected { .. });
                // Whichever call met it, it is the same news.
                let message = if unreachable { crate::tls::with_cure(peer, error.kind.to_string()) } else { message };
                Self::Transient { peer, message, retry_after: error.retry_after(), unreachable }
            }
        }
    }
}

impl From<litellm_client::Error> for Failure {
    fn from(error: litellm_client::Error) -> Self {
        use litellm_client::{Class, ErrorKind};
        let (peer, message) = (Peer::Gateway, error.to_string());
        match error.class() {
            // Among them what the gateway sells as an extra ("Enterprise").
            Class::Credential | Class::Refused if error.status() == Some(403) => {
                Self::Forbidden { peer, right: format!("{} {}", error.method, error.path), message }
            }
            Class::Credential => Self::Credential { peer, message },
            // A 404 of the gateway proves nothing; the next look asks where absence is told honestly.
            Class::AlreadyExists | Class::NotFound | Class::CustomKeysForbidden => Self::Conflict { message },
            Class::Refused => Self::Refused { peer, message },
            Class::Transient => {
                let unreachable = matches!(error.kind, ErrorKind::Unreachable { .. } | ErrorKind::Redirected { .. });
                // Whichever call met it, it is the same news.
                let message = if unreachable { crate::tls::with_cure(peer, error.kind.to_string()) } else { message };
                Self::Transient { peer, message, retry_after: error.retry_after(), unreachable }
            }
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let (peer, message) = (Peer::Secrets, crate::tls::with_cure(Peer::Secrets, error.to_string()));
        match error {
            StoreError::Transient { retry_after, .. } => Self::Transient { peer, message, retry_after, unreachable: false },
            StoreError::Denied { cure, .. } => Self::Forbidden { peer, right: cure, message },
            StoreError::Conflict { .. } => Self::Conflict { message },
            StoreError::Taken { .. } => Self::Blocked(Obstacle::TakenSecret(message)),
            StoreError::Foreign { name } => Self::Blocked(Obstacle::ForeignSecret { name }),
            StoreError::Invalid { .. } => Self::Refused { peer, message },
        }
    }
}

/// Why an agent could not be put together from its configuration.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Waldur's address or CA file.
    #[error("waldur: {0}")]
    Waldur(#[source] waldur_client::BuildError),
    /// The gateway's address or CA file.
    #[error("gateway: {0}")]
    Gateway(#[source] litellm_client::BuildError),
    /// The cluster or folder for Secrets.
    #[error("secrets: {0}")]
    Secrets(String),
    /// A CA file.
    #[error("{field}: {path} cannot be read ({cause}); give a PEM file")]
    CaFile {
        /// The field that names it.
        field: &'static str,
        /// Its path.
        path: String,
        /// What the system said.
        cause: std::io::Error,
    },
}

impl Agent {
    /// Puts an agent together. Nothing is sent to Waldur or the gateway yet.
    ///
    /// # Errors
    /// Addresses, CA files or a cluster that cannot be used.
    pub async fn new(config: Config, clock: Clock) -> Result<Self, BuildError> {
        let secrets = secret_store(&config, &clock).await?;
        Self::with_store(config, clock, secrets)
    }

    /// Like [`Agent::new`] with a given Secret store.
    ///
    /// # Errors
    /// Addresses or CA files that cannot be used.
    pub fn with_store(config: Config, clock: Clock, secrets: SecretStore) -> Result<Self, BuildError> {
        let auth = match &config.waldur.auth {
            WaldurAuth::Token(secret) => waldur_client::Auth::Token(secret.source()),
            WaldurAuth::Oidc { token_url, client_id, client_secret } => waldur_client::Auth::Oidc {
                token_url: token_url.clone(),
                client_id: client_id.clone(),
                client_secret: client_secret.source(),
            },
        };
        let waldur = waldur_client::Client::new(waldur_settings(&config, auth)?).map_err(BuildError::Waldur)?;
        let gateway = litellm_client::Client::new(litellm_client::Settings {
            url: config.gateway.url.clone(),
            key: config.gateway.key.source(),
            timeout: config.gateway.timeout,
            connect_timeout: CONNECT_TIMEOUT.min(config.gateway.timeout),
            ca_bundle: ca_file("gateway.ca_file", config.gateway.ca_file.as_deref())?,
            allow_insecure_http: config.gateway.allow_insecure_http,
            user_agent: USER_AGENT.into(),
        })
        .map_err(BuildError::Gateway)?;
        Ok(Self(Arc::new(Inner {
            features: Features::new(clock.clone()),
            conditions: Conditions::new(clock.clone(), secrets.events().clone()),
            gates: Gates::default(),
            schedule: Schedule::new(clock.clone(), config.backoff.clone()),
            workers: Arc::new(Semaphore::new(config.concurrency.orders.max(1))),
            repairers: Arc::new(Semaphore::new((config.concurrency.orders / 2).max(1))),
            tasks: TaskTracker::new(),
            leading: true.into(),
            progress: crate::http::Progress::new(clock.clone()),
            seen: crate::page::Seen::new(config.page.is_some()),
            watch: Mutex::new(Watch::new(config.catalogue.hold, config.catalogue.max_shrink)),
            memory: Mutex::default(),
            waldur,
            gateway,
            secrets,
            clock,
            config,
        })))
    }

    pub(crate) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The catalogue as of now, read anew on each call, under the rules that keep a damaged file from changing anything:
    /// see [`Watch`]. `None` until it could be read once.
    pub fn catalogue(&self) -> Option<Arc<View>> {
        const UNREADABLE: &str = "catalogue-unreadable";
        const HELD: &str = "catalogue-shrink-held";
        const DOUBTED: &str = "catalogue-entry-doubted";
        let last = self.memory().read.clone();
        let read = match catalogue::read_again(&self.config.catalogue.file, self.smallest_unit(), last.as_ref()) {
            Ok(read) => {
                self.conditions.clear(UNREADABLE, "");
                if last.is_none_or(|last| last.digest != read.digest) {
                    tracing::info!(models = read.models.len(), "catalogue read from {}", self.config.catalogue.file.display());
                }
                self.memory().read = Some(Arc::clone(&read));
                Some(read)
            }
            Err(error) => {
                self.conditions.raise(UNREADABLE, "", error);
                None
            }
        };
        let remembered = self.remembered();
        let view =
            self.watch.lock().unwrap_or_else(std::sync::PoisonError::into_inner).observe(read.as_deref(), self.clock.now(), &remembered);
        if let Some(view) = view.as_ref().filter(|view| view.readable) {
            match &view.held {
                Some(shrink) => self.conditions.raise(HELD, "", shrink),
                None => self.conditions.clear(HELD, ""),
            }
            if view.doubted.is_empty() {
                self.conditions.clear(DOUBTED, "");
            } else {
                let models: Vec<&str> = view.doubted.iter().map(String::as_str).collect();
                self.conditions.raise(
                    DOUBTED,
                    "",
                    format!("{} lost their prices or `orderable: false` in the catalogue, as in a file that was cut; what they had holds until `catalogue.hold` is over", models.join(", ")),
                );
            }
            metrics::gauge!("llm_access_catalogue_models").set(crate::orders::count(view.models.len()));
            metrics::gauge!("llm_access_catalogue_models_missing").set(crate::orders::count(view.missing.len()));
            metrics::gauge!("llm_access_catalogue_shrink_held").set(if view.held.is_some() { 1.0 } else { 0.0 });
        }
        view
    }

    /// The smallest unit that prices are kept in: what it cannot hold, no offering can.
    pub(crate) fn smallest_unit(&self) -> Option<TokenUnit> {
        self.config.offerings.iter().map(|offering| offering.token_unit).min_by_key(|unit| unit.tokens())
    }

    /// A client of the same Waldur with another token, as that of a staff user.
    ///
    /// # Errors
    /// An address or CA file that cannot be used.
    pub(crate) fn waldur_as(&self, token: SecretFile) -> Result<waldur_client::Client, String> {
        let auth = waldur_client::Auth::Token(SecretRef::File(token).source());
        waldur_settings(&self.config, auth)
            .and_then(|settings| waldur_client::Client::new(settings).map_err(BuildError::Waldur))
            .map_err(|error| error.to_string())
    }

    /// What all offerings together know about models.
    fn remembered(&self) -> Remembered {
        let memory = self.memory();
        let mut all = Remembered::default();
        for one in memory.remembered.values() {
            all.models.extend(one.models.iter().cloned());
            all.choices.extend(one.choices.iter().cloned());
            all.gone.extend(one.gone.iter().cloned());
            all.accepted.extend(one.accepted.iter().cloned());
            all.max_budget = all.max_budget.max(one.max_budget);
        }
        // What one offering still sells is not gone for the other.
        all.gone.retain(|name| !all.models.contains(name));
        all
    }

    /// Takes what an offering knows about models into account, as it was just read.
    pub(crate) fn remember(&self, offering: &waldur_client::Offering) {
        let remembered = crate::plan::remembered(offering);
        self.memory().remembered.insert(offering.uuid, remembered);
    }

    /// Models that the gateway serves from deployments of ours: those of one that left the catalogue while no agent ran have
    /// to be missed for as long as any other before they count as gone.
    pub(crate) fn remember_deployments(&self, models: BTreeSet<String>) {
        self.memory().remembered.insert(Uuid::nil(), Remembered { models, ..Remembered::default() });
    }

    /// The rules for one offering, with what was learnt so far.
    #[must_use]
    pub fn rules<'a>(&'a self, offering: &'a OfferingConfig, catalogue: &'a View) -> Rules<'a> {
        Rules {
            owner: &self.config.owner,
            offering,
            catalogue,
            public_url: &self.config.gateway.public_url,
            internal_url: &self.config.gateway.url,
            webui_url: self.config.webui.as_ref().map(|webui| &webui.url),
            endpoints: self.features.known(Feature::Endpoints) != Some(false),
            custom_keys: self.features.worth_trying(Feature::CustomKeys),
            now: self.clock.now(),
            grace: self.config.rotation.grace,
            project_key: !self.memory().governed.get(&offering.uuid).copied().unwrap_or(false),
        }
    }

    /// How often the mark on a team was restored within the last hour.
    pub(crate) fn mark_repairs(&self, resource: Uuid) -> u32 {
        let hour_ago = self.clock.now().checked_sub(jiff::SignedDuration::from_hours(1)).unwrap_or(Timestamp::MIN);
        let mut memory = self.memory();
        let Some(times) = memory.mark_repairs.get_mut(&resource) else { return 0 };
        times.retain(|at| *at > hour_ago);
        u32::try_from(times.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn note_mark_repair(&self, resource: Uuid) {
        let now = self.clock.now();
        self.memory().mark_repairs.entry(resource).or_default().push(now);
    }

    /// Takes a failure of a peer into account: closes its gate and raises the condition where all its callers are affected.
    pub(crate) fn note_failure(&self, failure: &Failure) {
        match failure {
            Failure::Credential { peer, message } | Failure::Forbidden { peer, message, .. } => {
                self.gates.close(*peer);
                self.conditions.raise(peer.refused(), "", format!("{peer} refuses our credential or a right is missing: {message}"));
            }
            Failure::Transient { peer, message, unreachable: true, .. } => {
                self.gates.close(*peer);
                self.conditions.raise(peer.unreachable(), "", message);
            }
            // Said with the first such failure: the texts of the next ones differ, and none is news.
            Failure::Transient { peer, message, .. }
                if self.gates.count_failure(*peer) >= FAILURES && !self.conditions.holds(peer.failing()) =>
            {
                self.conditions.raise(
                    peer.failing(),
                    "",
                    format!("{peer} can be reached, but {FAILURES} calls in a row failed, this one at last: {message}"),
                );
            }
            _ => {}
        }
    }

    /// Takes a failure of a whole pass into account. A right that is missing for it is not missed by orders, so no gate is
    /// closed; the pass has a condition of its own that names it.
    pub(crate) fn note_pass_failure(&self, failure: &Failure) {
        if !matches!(failure, Failure::Forbidden { .. }) {
            self.note_failure(failure);
        }
    }

    /// One right is missing for an order or a repair. Nothing else is held up by it; what needs the same right asks one at
    /// a time whether it is there again.
    pub(crate) fn right_is_missing(&self, id: Uuid, peer: Peer, right: String, message: &str) {
        let delay = self.schedule.forbid(id, &right, message);
        tracing::debug!(?delay, "{message}");
        self.conditions.raise(
            peer.refused(),
            &right,
            format!("{peer} refuses the agent a right that it needs ({right}); no order is to blame. Grant it to the agent's user"),
        );
    }

    /// What failed for want of a right succeeded: all that waited for the same go on.
    pub(crate) fn right_is_there(&self, id: Uuid) {
        if let Some(right) = self.schedule.right(id) {
            self.schedule.allow(&right);
        }
        self.forget_rights();
    }

    /// Ends the conditions of missing rights that nothing waits for any more.
    pub(crate) fn forget_rights(&self) {
        let refused: Vec<&str> = Peer::ALL.iter().map(|peer| peer.refused()).collect();
        let held = self.conditions.all().into_iter().filter(|(name, right, _)| refused.contains(name) && !right.is_empty());
        let held: Vec<(&'static str, String)> = held.map(|(name, right, _)| (name, right)).collect();
        if held.is_empty() {
            return;
        }
        let waited_for = self.schedule.rights();
        for (name, right) in held.into_iter().filter(|(_, right)| !waited_for.contains(right)) {
            self.conditions.clear(name, right);
        }
    }

    /// A peer answered: whatever was wrong with it is over.
    pub(crate) fn note_answer(&self, peer: Peer) {
        self.gates.open(peer);
        self.conditions.clear_all(&[peer.unreachable(), peer.failing(), peer.refused()], "");
    }

    /// Asks every peer with a closed gate one cheap question. Returns those that stay closed.
    pub(crate) async fn probe_gates(&self) -> Vec<Peer> {
        for peer in self.gates.closed() {
            let answer: Result<(), Failure> = match peer {
                // Waldur is probed by the list of orders that follows.
                Peer::Waldur => Ok(()),
                Peer::Gateway => self.gateway.team(&crate::domain::team_id(Uuid::nil())).await.map(drop).map_err(Into::into),
                Peer::Secrets => self.secrets.of_resource(Uuid::nil(), None).await.map(drop).map_err(Into::into),
            };
            match answer {
                Ok(()) if peer != Peer::Waldur => self.note_answer(peer),
                Ok(()) => {}
                Err(failure) => self.note_failure(&failure),
            }
        }
        self.gates.closed().into_iter().filter(|peer| *peer != Peer::Waldur).collect()
    }

    /// Whether a peer cannot be reached at all.
    pub(crate) fn is_cut_off(&self) -> bool {
        Peer::ALL.iter().any(|peer| self.conditions.holds(peer.unreachable()))
    }

    /// Whether this replica may act.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.leading.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Asked before every write: another replica may have taken over since the last look.
    pub(crate) fn must_lead(&self) -> Result<(), Failure> {
        if self.is_leading() { Ok(()) } else { Err(Failure::Conflict { message: "the Lease was lost; another replica goes on".into() }) }
    }

    /// Waits until everything in flight has ended.
    pub async fn settle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
        self.secrets.events().flush().await;
    }

    /// The configured offering of this uuid.
    #[must_use]
    pub fn offering(&self, uuid: Uuid) -> Option<&OfferingConfig> {
        self.config.offerings.iter().find(|offering| offering.uuid == uuid)
    }
}

fn waldur_settings(config: &Config, auth: waldur_client::Auth) -> Result<waldur_client::Settings, BuildError> {
    Ok(waldur_client::Settings {
        api_url: config.waldur.api_url.clone(),
        auth,
        timeout: config.waldur.timeout,
        connect_timeout: CONNECT_TIMEOUT.min(config.waldur.timeout),
        ca_bundle: ca_file("waldur.ca_file", config.waldur.ca_file.as_deref())?,
        allow_insecure_http: config.waldur.allow_insecure_http,
        user_agent: USER_AGENT.into(),
        page_size: 300,
    })
}

async fn secret_store(config: &Config, clock: &Clock) -> Result<SecretStore, BuildError> {
    match &config.secrets {
        SecretsConfig::Directory { path } => {
            Directory::new(path.clone(), &config.owner).map(SecretStore::Directory).map_err(|e| BuildError::Secrets(e.to_string()))
        }
        SecretsConfig::Kubernetes { chat, key_namespace, .. } => {
            let api = kubernetes_api(config).await?.ok_or_else(|| BuildError::Secrets("no cluster is configured".into()))?;
            let namespaces = Namespaces { chat: chat.clone(), keys: key_namespace.clone() };
            let events = events(config, &api, clock);
            Ok(SecretStore::Kubernetes(Kubernetes::new(api, &config.owner, namespaces).telling(events)))
        }
    }
}

fn events(config: &Config, api: &llm_access_k8s::Secrets, clock: &Clock) -> Events {
    let Some(settings) = &config.events else { return Events::off() };
    let pod = settings.pod.as_ref().map(|pod| llm_access_k8s::Subject {
        api_version: "v1",
        kind: "Pod",
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: Some(pod.uid.clone()),
    });
    let instance = pod.as_ref().map_or_else(|| std::env::var("HOSTNAME").unwrap_or_default(), |pod| pod.name.clone());
    Events::new(llm_access_k8s::Events::new(api, &instance), pod, clock.clone())
}

/// The cluster, where Secrets are kept in one.
///
/// # Errors
/// A cluster that cannot be used.
pub async fn kubernetes_api(config: &Config) -> Result<Option<llm_access_k8s::Secrets>, BuildError> {
    let SecretsConfig::Kubernetes { kubeconfig, context, api_url, timeout, .. } = &config.secrets else { return Ok(None) };
    let settings = llm_access_k8s::Settings {
        kubeconfig: kubeconfig.clone(),
        context: context.clone(),
        api_url: api_url.clone(),
        timeout: *timeout,
        user_agent: USER_AGENT.into(),
        field_manager: crate::domain::MANAGED_BY.into(),
    };
    llm_access_k8s::Secrets::connect(settings).await.map(Some).map_err(|e| BuildError::Secrets(e.to_string()))
}

fn ca_file(field: &'static str, path: Option<&Path>) -> Result<Option<Vec<u8>>, BuildError> {
    path.map(|path| std::fs::read(path).map_err(|cause| BuildError::CaFile { field, path: path.display().to_string(), cause })).transpose()
}

/// A path with a mark in the place of each uuid: what it asks for, whatever it asks it of.
fn without_ids(path: &str) -> String {
    path.split('/').map(|part| if Uuid::try_parse(part).is_ok() { "{uuid}" } else { part }).collect::<Vec<_>>().join("/")
}

/// Where customers reach the OpenAI API, for messages.
#[must_use]
pub fn api_base(url: &Url) -> String {
    format!("{}/v1", url.as_str().trim_end_matches('/'))
}

/// The names of a catalogue's orderable models.
impl Catalogue {
    /// What projects may order.
    #[must_use]
    pub fn orderable(&self) -> BTreeSet<String> {
        self.models.iter().filter(|model| model.orderable).map(|model| model.served_name.clone()).collect()
    }
}
