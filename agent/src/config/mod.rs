//! The configuration: defaults, under one YAML file, under the environment (`LLM_ACCESS__SECTION__FIELD`).
//!
//! [`load`] reports every mistake at once, each with its line and column or the name of its variable, and never quotes what
//! may be a secret. `docs/configuration.md` describes the fields.

mod env;
mod fields;
pub(crate) mod number;
mod problem;
mod reader;
pub(crate) mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rust_decimal::Decimal;
use url::Url;
use uuid::Uuid;

use crate::domain::TeamLimits;
use crate::secret_file::SecretRef;
use crate::visible::visible_start;
pub use fields::describe;
pub(crate) use number::show_duration;
pub use problem::Problem;
pub(crate) use problem::{nearest, sort, write_all};

use env::Env;
use reader::{Place, Reader, Section, dns_label};
use yaml::{Kind, Node, Pos};

/// The largest configuration file, in bytes (1 MiB).
const MAX_FILE_BYTES: usize = 1024 * 1024;

/// The shortest `terminate.drain` without `terminate.allow_short_drain`: replicas of the gateway keep a blocked team in their
/// cache for 60 s, and ledger rows arrive up to 25 s late.
pub const MIN_DRAIN: Duration = Duration::from_secs(90);

/// A configuration that was accepted.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What is allowed and deserves a line in the log.
    pub warnings: Vec<String>,
}

/// Everything that is wrong with a configuration, one problem per line when shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The problems, in the order of the file; those of variables and of the file as a whole come last.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_all(&self.problems, f)
    }
}

impl std::error::Error for ConfigErrors {}

/// The whole configuration, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The mark of this environment on everything the agent makes; fit for a Kubernetes label value.
    pub owner: String,
    /// The Waldur server.
    pub waldur: WaldurConfig,
    /// The LiteLLM proxy.
    pub gateway: GatewayConfig,
    /// Open WebUI, when customers get a chat endpoint.
    pub webui: Option<WebuiConfig>,
    /// The model catalogue.
    pub catalogue: CatalogueConfig,
    /// The offerings to serve; at least one, each UUID once, all with one currency.
    pub offerings: Vec<OfferingConfig>,
    /// Where keys and chat connections are kept.
    pub secrets: SecretsConfig,
    /// Beats of the loops.
    pub intervals: Intervals,
    /// How a resource ends.
    pub terminate: TerminateConfig,
    /// How keys are replaced.
    pub rotation: RotationConfig,
    /// How usage is reported.
    pub usage: UsageConfig,
    /// Bounds on parallel work.
    pub concurrency: Concurrency,
    /// Waits between tries of one order.
    pub backoff: Backoff,
    /// The agent's own listener.
    pub http: HttpConfig,
    /// The status page, where there is one.
    pub page: Option<PageConfig>,
    /// Where spans are sent by OTLP over HTTP; none without.
    pub traces: Option<Url>,
    /// Which Deployments are restarted when their chat Secret changes; only with Secrets in a cluster.
    pub restart: Option<RestartConfig>,
    /// Events in the cluster, where they are turned on.
    pub events: Option<EventsConfig>,
    /// The Lease, when more than one replica runs.
    pub lease: Option<LeaseConfig>,
    /// Bounds on the removal of orphans.
    pub orphans: OrphansConfig,
    /// The log.
    pub log: LogConfig,
}

/// The Waldur server.
#[derive(Clone, Debug)]
pub struct WaldurConfig {
    /// The API, with a slash at the end, as `https://waldur.example.org/api/`.
    pub api_url: Url,
    /// How the agent signs in.
    pub auth: WaldurAuth,
    /// IANA name of the zone in which the server dates usage; known to the time zone data.
    pub zone: String,
    /// Longest time for one call.
    pub timeout: Duration,
    /// PEM bundle of further certificate authorities.
    pub ca_file: Option<PathBuf>,
    /// Plain http to a host that is not on loopback was allowed, here or for all peers.
    pub allow_insecure_http: bool,
}

/// How the agent signs in at Waldur.
#[derive(Clone, Debug)]
pub enum WaldurAuth {
    /// With an API token.
    Token(SecretRef),
    /// With a token from an identity provider, by client credentials.
    Oidc {
        /// Token endpoint, as written: without a slash added at the end.
        token_url: Url,
        /// Client id.
        client_id: String,
        /// Client secret.
        client_secret: SecretRef,
    },
}

/// The LiteLLM proxy.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// As the agent reaches it, with a slash at the end.
    pub url: Url,
    /// As customers reach it, with a slash at the end and without `v1`.
    pub public_url: Url,
    /// An admin key of the proxy.
    pub key: SecretRef,
    /// Whether models of the catalogue are registered in the gateway.
    pub manage_models: bool,
    /// What the gateway shows to the servers of registered models; none where they ask for nothing.
    pub model_key: Option<SecretRef>,
    /// Where the servers of registered models are.
    pub api_base: ApiBases,
    /// Longest time for one call.
    pub timeout: Duration,
    /// PEM bundle of further certificate authorities.
    pub ca_file: Option<PathBuf>,
    /// Plain http to a host that is not on loopback was allowed, here or for all peers.
    pub allow_insecure_http: bool,
}

impl GatewayConfig {
    /// The OpenAI-compatible base URL that customers use: `<public_url>/v1`, without a slash at the end.
    pub fn public_openai_url(&self) -> String {
        format!("{}/v1", self.public_url.as_str().trim_end_matches('/'))
    }

    /// The OpenAI-compatible base URL inside the platform: `<url>/v1`, without a slash at the end.
    pub fn openai_url(&self) -> String {
        format!("{}/v1", self.url.as_str().trim_end_matches('/'))
    }
}

/// Where the servers of registered models are, by runtime: URLs in which `{name}` stands for the model's name inside the
/// platform and `{served_name}` for its public name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiBases {
    /// vLLM behind KServe.
    pub vllm: String,
    /// Text embeddings inference.
    pub tei: String,
    /// The one CPU server.
    pub cpu: String,
}

impl ApiBases {
    /// The Service that serves a model under a stable name.
    const DEFAULT: &str = "http://{name}-openai.inference.svc.cluster.local:8000/v1";
}

/// Open WebUI.
#[derive(Clone, Debug)]
pub struct WebuiConfig {
    /// As customers reach it, with a slash at the end.
    pub url: Url,
}

/// The model catalogue.
#[derive(Clone, Debug)]
pub struct CatalogueConfig {
    /// The file.
    pub file: PathBuf,
    /// How long a model has to be absent before it counts as gone.
    pub hold: Duration,
    /// How much a catalogue may shrink before it is held.
    pub max_shrink: MaxShrink,
}

/// How much a catalogue may shrink before it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxShrink {
    /// Share of the models, 0 to 1.
    pub share: Decimal,
    /// Number of models.
    pub models: u32,
}

/// One offering.
#[derive(Clone, Debug)]
pub struct OfferingConfig {
    /// Its UUID in Waldur.
    pub uuid: Uuid,
    /// Names of the plans whose prices the agent keeps; empty for every plan of the offering.
    pub plans: Vec<String>,
    /// Which usage components the offering has; the family that charges is among them.
    pub components: Vec<Family>,
    /// Which usage components charge.
    pub billing: Billing,
    /// How many tokens one unit of a usage component is.
    pub token_unit: TokenUnit,
    /// A label, the same for all offerings.
    pub currency: String,
    /// Defaults and bounds of what may be ordered.
    pub limits: LimitsConfig,
    /// Who approves what.
    pub approval: Approval,
    /// Served names that join every team.
    pub always_include: Vec<String>,
    /// What a downscaled resource gets.
    pub on_downscale: OnDownscale,
    /// How the customer gets the key.
    pub delivery: Delivery,
}

/// A family of usage components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `<model>:input` and `<model>:output`.
    PerModel,
    /// `input_tokens`, `output_tokens` and `spend`, over all models.
    Aggregate,
}

/// Which usage components charge; the others are priced 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Billing {
    /// Tokens, per model and direction.
    PerModel,
    /// The gateway's spend.
    Spend,
}

/// How many tokens one unit of a usage component is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenUnit {
    /// One token.
    One,
    /// A thousand.
    Thousand,
    /// A million.
    Million,
}

impl TokenUnit {
    /// The number of tokens.
    pub fn tokens(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Thousand => 1_000,
            Self::Million => 1_000_000,
        }
    }

    /// As written in the configuration: `1`, `1k` or `1M`.
    pub fn label(self) -> &'static str {
        match self {
            Self::One => "1",
            Self::Thousand => "1k",
            Self::Million => "1M",
        }
    }
}

/// Default and bound of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitRule {
    /// For a resource that was ordered without this limit; not above `max`.
    pub default: Option<Decimal>,
    /// The largest value that may be ordered.
    pub max: Option<Decimal>,
}

impl LimitRule {
    /// The default where another place has one that goes first, such as the catalogue's budget; never above `max`.
    #[must_use]
    pub fn default_after(&self, first: Option<Decimal>) -> Option<Decimal> {
        let default = first.or(self.default)?;
        Some(self.max.map_or(default, |max| default.min(max)))
    }
}

/// Defaults and bounds of what may be ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Budget, in the currency per month.
    pub max_budget: LimitRule,
    /// Tokens per minute; whole numbers above 0.
    pub tpm_limit: LimitRule,
    /// Requests per minute; whole numbers above 0.
    pub rpm_limit: LimitRule,
    /// Whether a resource may have no budget at all.
    pub allow_unlimited: bool,
}

/// Who approves an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalMode {
    /// The agent, once it has evaluated the order.
    Auto,
    /// A person, in Waldur.
    Manual,
}

/// Who approves what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approval {
    /// Orders for a new resource.
    pub create: ApprovalMode,
    /// Changes of limits or models.
    pub update: ApprovalMode,
    /// Terminations.
    pub terminate: ApprovalMode,
}

/// What a downscaled resource gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnDownscale {
    /// Nothing: the team is blocked.
    Block,
    /// These caps, where they are tighter than its own; at least one is set.
    Reduce(TeamLimits),
}

/// How the customer gets the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// On a Waldur that has no API-key tab.
    pub api_key_on_old_servers: ApiKeyDelivery,
}

/// What is done with the key on a Waldur that has no API-key tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiKeyDelivery {
    /// It is not given to Waldur; an operator can show it.
    Hide,
    /// It is written into the resource's report, for everybody who sees the resource.
    Report,
}

/// Where keys and chat connections are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretsConfig {
    /// In files below a directory.
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// In Secrets of a Kubernetes cluster.
    Kubernetes {
        /// The kubeconfig, when it is not found in the usual places.
        kubeconfig: Option<PathBuf>,
        /// The context in it, when it is not the current one.
        context: Option<String>,
        /// The API without credentials, for a local proxy.
        api_url: Option<Url>,
        /// Longest time for one call.
        timeout: Duration,
        /// Where the Secrets for Open WebUI go.
        chat: ChatNamespaces,
        /// Where the Secrets with project keys go.
        key_namespace: String,
    },
}

/// Which Deployment reads the chat Secret of a project, in the namespace of that Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestartConfig {
    /// One of this name in each namespace.
    One(String),
    /// Each project's own; what a project that is not listed runs is left alone.
    PerProject(BTreeMap<Uuid, String>),
}

impl RestartConfig {
    /// The Deployment of a project.
    #[must_use]
    pub fn of(&self, project: Option<Uuid>) -> Option<&str> {
        match self {
            Self::One(name) => Some(name),
            Self::PerProject(map) => map.get(&project?).map(String::as_str),
        }
    }
}

/// Where the Secrets for Open WebUI go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatNamespaces {
    /// All into one namespace.
    One(String),
    /// Each project's into its own; a project that is not listed has no chat.
    PerProject(BTreeMap<Uuid, String>),
}

/// Beats of the loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Orders.
    pub orders: Duration,
    /// Resources compared with the gateway.
    pub resources: Duration,
    /// The offering compared with the catalogue.
    pub offering: Duration,
    /// Usage reported.
    pub usage: Duration,
}

/// How a resource ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminateConfig {
    /// Wait between blocking the team and its final usage.
    pub drain: Duration,
    /// Time between the two equal usage reads.
    pub settle: Duration,
    /// Whether a drain shorter than [`MIN_DRAIN`] was allowed.
    pub allow_short_drain: bool,
}

/// How keys are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationConfig {
    /// How long the old key serves on beside the new one.
    pub grace: Duration,
}

/// How usage is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageConfig {
    /// For so many days after a month's end its usage is reported again, where the server dates usage.
    pub late_days: u32,
    /// How near to a month's end nothing is sent to a server that does not date usage.
    pub month_guard: Duration,
    /// What failed calls cost.
    pub failed_calls: FailedCalls,
}

/// What is done with the tokens that the gateway estimates for failed calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedCalls {
    /// They are billed as the ledger has them.
    AsLedger,
    /// They are subtracted, by the gateway's log of calls.
    Exclude,
}

/// Bounds on parallel work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// Orders worked on at the same time, at least 1.
    pub orders: usize,
}

/// Waits between tries of one order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub initial: Duration,
    /// The longest.
    pub max: Duration,
}

/// The agent's own listener, and plain http in general.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Where it listens; none without.
    pub listen: Option<SocketAddr>,
    /// Plain http to any peer that is not on loopback was allowed.
    pub allow_insecure_http: bool,
}

/// The status page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Names besides `localhost` and plain addresses that it answers to.
    pub hosts: Vec<String>,
}

/// Events in the cluster that holds the Secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsConfig {
    /// The agent's own pod, which conditions are told at.
    pub pod: Option<PodConfig>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodConfig {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid, without which `kubectl describe` shows no event.
    pub uid: String,
}

/// The Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How long a silent holder keeps it; whole seconds.
    pub duration: Duration,
}

/// Bounds on the removal of orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphansConfig {
    /// How many one pass removes at most.
    pub max_per_pass: u32,
}

/// The log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Text or JSON.
    pub format: LogFormat,
    /// A level or a filter, which the subscriber can parse.
    pub level: String,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Reads the configuration: defaults, under the file at `path` (if any), under the variables in `env`. A variable that is
/// set to nothing counts as not set; variables of others are ignored.
///
/// # Errors
/// With everything that is wrong, when anything is.
pub fn load(path: Option<&Path>, env: &[(String, String)]) -> Result<Loaded, ConfigErrors> {
    let file = path.map_or_else(|| "configuration".to_owned(), |path| path.display().to_string());
    let text = path.map(|path| read_file(path, &file)).transpose();
    match text {
        Ok(text) => load_text(&file, text.as_deref().unwrap_or_default(), env),
        Err(problem) => {
            let mut problems = vec![problem];
            problems.append(&mut Env::new(env).misspelt());
            Err(ConfigErrors { problems })
        }
    }
}

fn read_file(path: &Path, file: &str) -> Result<String, Problem> {
    let bytes = std::fs::read(path)
        .map_err(|error| Problem::of(file, "", format!("cannot be read: {error}; check the path, or name another file")))?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(Problem::of(file, "", "is larger than 1 MiB, which is no configuration; check the path"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let bytes = &error.as_bytes()[..valid];
        let line = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = bytes.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        Problem::at(file, Pos { line, column }, "", "is not UTF-8 text from here on; save the file as UTF-8")
    })
}

/// [`load`], with the text of the file at hand.
pub(crate) fn load_text(file: &str, text: &str, env: &[(String, String)]) -> Result<Loaded, ConfigErrors> {
    let mut reader = Reader::new(file.to_owned(), Env::new(env));
    let mut problems = reader.env.misspelt();
    let config = match yaml::parse(text) {
        Ok(root) => read(&mut reader, root),
        Err(error) => {
            problems.push(Problem::at(file, error.pos, "", error.message));
            None
        }
    };
    problems.append(&mut reader.problems);
    sort(&mut problems);
    match config {
        Some(config) if problems.is_empty() => Ok(Loaded { config, warnings: reader.warnings }),
        _ => Err(ConfigErrors { problems }),
    }
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Reads every section. `None` only when a problem was recorded.
fn read(reader: &mut Reader<'_>, root: Option<Node>) -> Option<Config> {
    let root = reader.root(root);

    let http = reader.section(&root, "http");
    let insecure = reader.boolean(&http, "allow_insecure_http", false);
    let http = HttpConfig { listen: listen(reader, &http, "0.0.0.0:9090, or [::]:9090"), allow_insecure_http: insecure };
    let waldur = waldur(reader, &root, insecure);
    let gateway = gateway(reader, &root, insecure);
    let webui = match reader.optional_section(&root, "webui") {
        Some(section) => reader.required_url(&section, "url").map(|url| WebuiConfig { url }),
        None => None,
    };
    let catalogue = catalogue(reader, &root);
    let offerings = offerings(reader, &root);
    let (secrets, restart) = secrets(reader, &root).unzip();

    let section = reader.section(&root, "intervals");
    let intervals = Intervals {
        orders: reader.duration(&section, "orders", seconds(15)),
        resources: reader.duration(&section, "resources", seconds(60)),
        offering: reader.duration(&section, "offering", seconds(60)),
        usage: reader.duration(&section, "usage", seconds(600)),
    };
    let terminate = terminate(reader, &root);
    let section = reader.section(&root, "rotation");
    let rotation = RotationConfig { grace: reader.wait(&section, "grace", seconds(600)) };
    let usage = usage(reader, &root);

    let section = reader.section(&root, "concurrency");
    let orders = match reader.whole(&section, "orders").map(usize::try_from) {
        None => 16,
        Some(Ok(orders @ 1..=1024)) => orders,
        Some(_) => {
            reader.fault(&section, "orders", "has to be from 1 to 1024");
            16
        }
    };
    let concurrency = Concurrency { orders };

    let section = reader.section(&root, "backoff");
    let backoff =
        Backoff { initial: reader.duration(&section, "initial", seconds(5)), max: reader.duration(&section, "max", seconds(600)) };
    if backoff.initial > backoff.max {
        let max = number::show_duration(backoff.max);
        reader.fault(&section, "initial", format!("is longer than backoff.max ({max}); write a shorter one"));
    }

    let page = page(reader, &root);
    let events = events(reader, &root, secrets.as_ref());
    let traces = traces(reader, &root);
    let lease = lease(reader, &root);
    let section = reader.section(&root, "orphans");
    let orphans = OrphansConfig { max_per_pass: reader.whole(&section, "max_per_pass").unwrap_or(10) };
    let log = log(reader, &root);
    let owner = reader.name(&root, "owner", owner_label);

    let offerings = offerings?;
    Some(Config {
        owner: owner.unwrap_or_else(|| offerings.first().map(|offering| offering.uuid.simple().to_string()).unwrap_or_default()),
        waldur: waldur?,
        gateway: gateway?,
        webui,
        catalogue: catalogue?,
        offerings,
        secrets: secrets?,
        restart: restart.flatten(),
        intervals,
        terminate,
        rotation,
        usage,
        concurrency,
        backoff,
        http,
        page,
        events,
        traces,
        lease,
        orphans,
        log,
    })
}

/// What a label value of Kubernetes may be.
fn owner_label(text: &str) -> Result<(), &'static str> {
    let outer = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if bytes.len() <= 63 && outer(bytes.first()) && outer(bytes.last()) && bytes.iter().all(inner) {
        Ok(())
    } else {
        Err("has to be 1 to 63 of letters, digits, -, _ and ., with a letter or digit at both ends, since it becomes a label")
    }
}

fn listen(reader: &mut Reader<'_>, section: &Section, example: &str) -> Option<SocketAddr> {
    let text = reader.text(section, "listen")?;
    match text.parse() {
        Ok(address) => Some(address),
        Err(_) => {
            reader.fault(section, "listen", format!("is not an address and a port; write {example}"));
            None
        }
    }
}

fn page(reader: &mut Reader<'_>, root: &Section) -> Option<PageConfig> {
    let section = reader.optional_section(root, "page")?;
    reader.required(&section, "listen")?;
    let listen = listen(reader, &section, "127.0.0.1:9091, or [::1]:9091");
    let allow_remote = reader.boolean(&section, "allow_remote", false);
    if let Some(listen) = listen.filter(|listen| !listen.ip().is_loopback()) {
        if allow_remote {
            reader.warnings.push(format!(
                "page.listen: {listen} is not on loopback; everybody who reaches it reads the names of resources and projects, since the page asks for no password"
            ));
        } else {
            reader.fault(
                &section,
                "listen",
                "is not on loopback, and the page asks for no password; write 127.0.0.1:9091, or set page.allow_remote: true",
            );
        }
    }
    let hosts = reader.texts(&section, "hosts");
    if let Some(host) = hosts.iter().find(|host| !is_host_name(host)) {
        let message = format!(
            "holds {:?}, which is no host name; write it without scheme, port and path, as status.example.org",
            visible_start(host, 40)
        );
        reader.fault(&section, "hosts", message);
    }
    Some(PageConfig { listen: listen?, hosts })
}

fn events(reader: &mut Reader<'_>, root: &Section, secrets: Option<&SecretsConfig>) -> Option<EventsConfig> {
    let section = reader.section(root, "events");
    let enabled = reader.boolean(&section, "enabled", false);
    let pod = ["pod_namespace", "pod_name", "pod_uid"].map(|key| reader.text(&section, key));
    let given = pod.iter().flatten().count();
    let pod = match pod {
        [Some(namespace), Some(name), Some(uid)] => Some(PodConfig { namespace, name, uid }),
        _ if given == 0 => None,
        _ => {
            reader.fault(&section, "pod_name", "needs events.pod_namespace and events.pod_uid beside it; set all three, or none");
            None
        }
    };
    if enabled && matches!(secrets, Some(SecretsConfig::Directory { .. })) {
        reader.fault(&section, "enabled", "needs secrets.store: kubernetes; events are made in the cluster that holds the Secrets");
    }
    enabled.then_some(EventsConfig { pod })
}

fn traces(reader: &mut Reader<'_>, root: &Section) -> Option<Url> {
    let section = reader.section(root, "traces");
    let text = reader.text(&section, "endpoint")?;
    let endpoint = Url::parse(&text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    match endpoint {
        None => reader.fault(&section, "endpoint", "is not an http or https address; write it whole, as http://collector:4318/v1/traces"),
        Some(url) if !url.username().is_empty() || url.password().is_some() => {
            reader.fault(&section, "endpoint", "holds a credential, which would be logged; the collector has to do without");
        }
        Some(_) if !cfg!(feature = "otel") => {
            reader.fault(&section, "endpoint", "needs a build that can send traces (cargo build --features otel); leave it out");
        }
        Some(url) => return Some(url),
    }
    None
}

fn is_host_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 253 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
}

fn waldur(reader: &mut Reader<'_>, root: &Section, insecure: bool) -> Option<WaldurConfig> {
    let section = reader.section(root, "waldur");
    let allowed = reader.boolean(&section, "allow_insecure_http", insecure) || insecure;
    let api_url = reader.required_url(&section, "api_url");
    const CURE: &str = "set waldur.allow_insecure_http: true";
    reader.guard_http(&section, "api_url", api_url.as_ref(), allowed, CURE);
    if let Some(url) = &api_url
        && !url.path().ends_with("/api/")
    {
        reader.warnings.push(format!("waldur.api_url: {url} does not end in /api/, where Waldur serves its API"));
    }
    let auth = match reader.optional_section(&section, "oidc") {
        None => reader.required_secret(&section, "token").map(WaldurAuth::Token),
        Some(oidc) => {
            if reader.is_set(&section, "token_file") || reader.is_set(&section, "token") {
                let place = reader.place(&section, "token_file");
                reader.problem(&place, "waldur", "has a token and oidc; keep one of them");
            }
            let token_url = oidc_token_url(reader, &oidc);
            reader.guard_http(&oidc, "token_url", token_url.as_ref(), allowed, CURE);
            let client_id = reader.required(&oidc, "client_id");
            let client_secret = reader.required_secret(&oidc, "client_secret");
            match (token_url, client_id, client_secret) {
                (Some(token_url), Some(client_id), Some(client_secret)) => Some(WaldurAuth::Oidc { token_url, client_id, client_secret }),
                _ => None,
            }
        }
    };
    let zone = reader.name(&section, "zone", |zone| match jiff::tz::TimeZone::get(zone) {
        Ok(_) => Ok(()),
        Err(_) => Err("is not a known time zone; write an IANA name, as UTC or Europe/Athens"),
    });
    let timeout = reader.duration(&section, "timeout", seconds(30));
    let ca_file = ca_file(reader, &section);
    Some(WaldurConfig {
        api_url: api_url?,
        auth: auth?,
        zone: zone.unwrap_or_else(|| "UTC".to_owned()),
        timeout,
        ca_file,
        allow_insecure_http: allowed,
    })
}

/// The token endpoint is called exactly as written: many providers answer 404 with a slash at the end.
fn oidc_token_url(reader: &mut Reader<'_>, section: &Section) -> Option<Url> {
    let mut url = reader.required_url(section, "token_url")?;
    if let Some(text) = reader.text(section, "token_url")
        && !text.ends_with('/')
        && let Some(path) = url.path().strip_suffix('/').map(str::to_owned)
    {
        url.set_path(&path);
    }
    Some(url)
}

fn ca_file(reader: &mut Reader<'_>, section: &Section) -> Option<PathBuf> {
    let path = reader.path(section, "ca_file")?;
    if let Err(error) = std::fs::File::open(&path) {
        reader.fault(section, "ca_file", format!("cannot be read: {error}; check the path"));
    }
    Some(path)
}

fn gateway(reader: &mut Reader<'_>, root: &Section, insecure: bool) -> Option<GatewayConfig> {
    let section = reader.section(root, "gateway");
    let allowed = reader.boolean(&section, "allow_insecure_http", insecure) || insecure;
    let url = reader.required_url(&section, "url");
    reader.guard_http(&section, "url", url.as_ref(), allowed, "set gateway.allow_insecure_http: true");
    let public_url = reader.required_url(&section, "public_url");
    for (key, url) in [("url", &url), ("public_url", &public_url)] {
        if url.as_ref().is_some_and(|url| url.path().ends_with("/v1/")) {
            reader.fault(&section, key, "ends in /v1, which the agent adds; write it without");
        }
    }
    let key = reader.required_secret(&section, "key");
    let manage_models = reader.boolean(&section, "manage_models", false);
    let model_key = reader.secret(&section, "model_key");
    let bases = reader.section(&section, "api_base");
    let mut base = |key| {
        let text = reader.text(&bases, key);
        if let Some(wrong) = text.as_deref().and_then(|text| api_base_template(text).err()) {
            reader.fault(&bases, key, wrong);
        }
        text.unwrap_or_else(|| ApiBases::DEFAULT.to_owned())
    };
    let api_base = ApiBases { vllm: base("vllm"), tei: base("tei"), cpu: base("cpu") };
    let timeout = reader.duration(&section, "timeout", seconds(30));
    let ca_file = ca_file(reader, &section);
    Some(GatewayConfig {
        url: url?,
        public_url: public_url?,
        key: key?,
        manage_models,
        model_key,
        api_base,
        timeout,
        ca_file,
        allow_insecure_http: allowed,
    })
}

/// What the address of a model's server may look like.
fn api_base_template(text: &str) -> Result<(), &'static str> {
    let filled = text.replace("{name}", "a").replace("{served_name}", "a");
    if filled.contains(['{', '}']) {
        return Err("holds a placeholder other than {name} and {served_name}");
    }
    match Url::parse(&filled) {
        Ok(url) if !matches!(url.scheme(), "http" | "https") || !url.has_host() => {
            Err("has to start with http:// or https:// and name a host")
        }
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            Err("holds a user name or password; give the key by gateway.model_key_file")
        }
        Ok(_) => Ok(()),
        Err(_) => Err("is not a URL; write it like http://{name}.models.svc:8000/v1"),
    }
}

fn catalogue(reader: &mut Reader<'_>, root: &Section) -> Option<CatalogueConfig> {
    let section = reader.section(root, "catalogue");
    let file = reader.required(&section, "file").map(PathBuf::from);
    let hold = reader.wait(&section, "hold", seconds(3600));
    let section = reader.section(&section, "max_shrink");
    let share = reader.decimal(&section, "share").unwrap_or_else(|| Decimal::new(25, 2));
    if share > Decimal::ONE {
        reader.fault(&section, "share", "is more than 1, the whole catalogue; write 0.25 for a quarter");
    }
    let models = reader.whole(&section, "models").unwrap_or(3);
    Some(CatalogueConfig { file: file?, hold, max_shrink: MaxShrink { share, models } })
}

fn terminate(reader: &mut Reader<'_>, root: &Section) -> TerminateConfig {
    let section = reader.section(root, "terminate");
    let drain = reader.wait(&section, "drain", seconds(180));
    let settle = reader.wait(&section, "settle", seconds(15));
    let allow_short_drain = reader.boolean(&section, "allow_short_drain", false);
    if drain < MIN_DRAIN {
        let shown = number::show_duration(drain);
        if allow_short_drain {
            reader
                .warnings
                .push(format!("terminate.drain: {shown} is under 90s; usage that reaches the gateway's ledger later is never billed"));
        } else {
            reader.fault(
                &section,
                "drain",
                format!("{shown} is under 90s, and usage that arrives late would not be billed; write 90s or more, or set terminate.allow_short_drain: true"),
            );
        }
    }
    TerminateConfig { drain, settle, allow_short_drain }
}

fn usage(reader: &mut Reader<'_>, root: &Section) -> UsageConfig {
    let section = reader.section(root, "usage");
    let late_days = reader.whole(&section, "late_days").unwrap_or(3);
    if late_days > 28 {
        reader.fault(&section, "late_days", "is more than 28, and the next month ends; write 0 to 28");
    }
    let month_guard = reader.wait(&section, "month_guard", seconds(900));
    let words = [("as_ledger", FailedCalls::AsLedger), ("exclude", FailedCalls::Exclude)];
    let failed_calls = reader.choice(&section, "failed_calls", &words).unwrap_or(FailedCalls::AsLedger);
    UsageConfig { late_days, month_guard, failed_calls }
}

fn lease(reader: &mut Reader<'_>, root: &Section) -> Option<LeaseConfig> {
    let section = reader.optional_section(root, "lease")?;
    let namespace = reader.required_name(&section, "namespace", dns_label);
    let name = reader.name(&section, "name", dns_label);
    let duration = reader.duration(&section, "duration", seconds(15));
    if duration.subsec_nanos() != 0 {
        reader.fault(&section, "duration", "is no whole number of seconds, which a Lease counts in");
    }
    Some(LeaseConfig { namespace: namespace?, name: name.unwrap_or_else(|| "llm-access-agent".to_owned()), duration })
}

fn log(reader: &mut Reader<'_>, root: &Section) -> LogConfig {
    let section = reader.section(root, "log");
    let format = reader.choice(&section, "format", &[("text", LogFormat::Text), ("json", LogFormat::Json)]);
    let level = reader.name(&section, "level", |level| {
        let word = !level.contains(['=', ',', '[']);
        let known = ["error", "warn", "info", "debug", "trace", "off"].contains(&level);
        if (word && !known) || tracing_subscriber::EnvFilter::try_new(level).is_err() {
            Err("is neither error, warn, info, debug or trace nor a filter as info,llm_access_agent=debug")
        } else {
            Ok(())
        }
    });
    LogConfig { format: format.unwrap_or(LogFormat::Text), level: level.unwrap_or_else(|| "info".to_owned()) }
}

/// Every offering; `None` when the list as a whole is missing or wrong.
fn offerings(reader: &mut Reader<'_>, root: &Section) -> Option<Vec<OfferingConfig>> {
    let indices = reader.env.offering_indices();
    let listed = reader.list(root, "offerings");
    if listed.is_none() && reader.is_set(root, "offerings") {
        return None;
    }
    let listed = listed.unwrap_or_default();
    let mut count = listed.len();
    for (index, variable) in indices {
        if index == count {
            count += 1;
        } else if index > count {
            let message = format!("there is no offering {index}: {count} are listed, counted from 0; use index {count} for a new one");
            reader.problem(&Place::Variable(variable.to_owned()), "", message);
        }
    }
    if count == 0 {
        let message = "has to list at least one offering; set it in the file, or LLM_ACCESS__OFFERINGS to its UUID";
        reader.fault(root, "offerings", message);
        return None;
    }
    let mut nodes = listed.into_iter();
    let mut offerings: Vec<OfferingConfig> = Vec::new();
    let mut complete = true;
    for index in 0..count {
        let path = format!("offerings[{index}]");
        let section = match nodes.next() {
            // A variable with UUIDs and commas between.
            Some((node, place @ Place::Variable(_))) if matches!(node.kind, Kind::Scalar { .. }) => {
                let entry = yaml::Entry { key: Some("uuid".to_owned()), key_pos: node.pos, value: node.clone(), merged: false };
                let node = Node { pos: node.pos, kind: Kind::Map(vec![entry]) };
                reader.open(path, Some(node), place)
            }
            Some((node, place)) => reader.open(path, Some(node), place),
            None => reader.open(path, None, Place::Absent),
        };
        match offering(reader, &section) {
            Some(offering) => {
                if let Some(first) = offerings.iter().position(|other| other.uuid == offering.uuid) {
                    reader.fault(&section, "uuid", format!("is the same as offerings[{first}].uuid; list each offering once"));
                }
                if let Some(first) = offerings.first().filter(|first| first.currency != offering.currency) {
                    let currency = first.currency.clone();
                    reader.fault(
                        &section,
                        "currency",
                        format!("differs from offerings[0].currency ({currency}); an environment has one currency"),
                    );
                }
                offerings.push(offering);
            }
            None => complete = false,
        }
    }
    complete.then_some(offerings)
}

fn offering(reader: &mut Reader<'_>, section: &Section) -> Option<OfferingConfig> {
    let uuid = reader.uuid(section, "uuid");
    let plans = reader.texts(section, "plans");
    let billing = reader.choice(section, "billing", &[("per_model", Billing::PerModel), ("spend", Billing::Spend)]);
    let components = components(reader, section, billing.unwrap_or(Billing::PerModel));
    let units = [("1", TokenUnit::One), ("1k", TokenUnit::Thousand), ("1M", TokenUnit::Million)];
    let token_unit = reader.choice(section, "token_unit", &units);
    let currency = reader.name(section, "currency", |text| {
        if text.chars().count() <= 10 && !text.chars().any(|character| character.is_control() || character.is_whitespace()) {
            Ok(())
        } else {
            Err("has to be 1 to 10 characters without blanks, as EUR")
        }
    });
    let limits = limits(reader, section);

    let approvals = reader.section(section, "approval");
    let mut approve = |key| {
        let words = [("auto", ApprovalMode::Auto), ("manual", ApprovalMode::Manual)];
        reader.choice(&approvals, key, &words).unwrap_or(ApprovalMode::Auto)
    };
    let approval = Approval { create: approve("create"), update: approve("update"), terminate: approve("terminate") };
    let always_include = reader.texts(section, "always_include");
    let on_downscale = on_downscale(reader, section);

    let delivery = reader.section(section, "delivery");
    let words = [("hide", ApiKeyDelivery::Hide), ("report", ApiKeyDelivery::Report)];
    let key_delivery = reader.choice(&delivery, "api_key_on_old_servers", &words).unwrap_or(ApiKeyDelivery::Hide);
    if key_delivery == ApiKeyDelivery::Report {
        reader.warnings.push(format!(
            "{}: report puts keys where everybody who can see the resource in Waldur reads them",
            delivery.path_of("api_key_on_old_servers")
        ));
    }
    Some(OfferingConfig {
        uuid: uuid?,
        plans,
        components,
        billing: billing.unwrap_or(Billing::PerModel),
        token_unit: token_unit.unwrap_or(TokenUnit::Thousand),
        currency: currency.unwrap_or_else(|| "EUR".to_owned()),
        limits,
        approval,
        always_include,
        on_downscale,
        delivery: Delivery { api_key_on_old_servers: key_delivery },
    })
}

/// The families of usage components. The one that charges has to be among them.
fn components(reader: &mut Reader<'_>, section: &Section, billing: Billing) -> Vec<Family> {
    const KEY: &str = "components";
    let (charging, word) = match billing {
        Billing::PerModel => (Family::PerModel, "per_model"),
        Billing::Spend => (Family::Aggregate, "aggregate"),
    };
    let written = reader.texts(section, KEY);
    if written.is_empty() {
        return match billing {
            Billing::PerModel => vec![Family::PerModel],
            Billing::Spend => vec![Family::PerModel, Family::Aggregate],
        };
    }
    let mut families = Vec::new();
    for text in &written {
        match text.as_str() {
            "per_model" => families.push(Family::PerModel),
            "aggregate" => families.push(Family::Aggregate),
            _ => {
                let message = format!("holds {text:?}, which is neither per_model nor aggregate");
                reader.fault(section, KEY, message);
            }
        }
    }
    if families.len() == written.len() && !families.contains(&charging) {
        let message = format!("is without {word}, which is what billing charges by; add it");
        reader.fault(section, KEY, message);
    }
    families
}

fn limits(reader: &mut Reader<'_>, offering: &Section) -> LimitsConfig {
    let section = reader.section(offering, "limits");
    let mut rule = |key: &str, whole: bool| {
        let section = reader.section(&section, key);
        let mut read = |key| {
            if whole { reader.rate(&section, key) } else { reader.decimal(&section, key) }
        };
        let rule = LimitRule { default: read("default"), max: read("max") };
        if let (Some(default), Some(max)) = (rule.default, rule.max)
            && default > max
        {
            let message = format!("is larger than {} ({max})", section.path_of("max"));
            reader.fault(&section, "default", message);
        }
        rule
    };
    let limits = LimitsConfig {
        max_budget: rule("max_budget", false),
        tpm_limit: rule("tpm_limit", true),
        rpm_limit: rule("rpm_limit", true),
        allow_unlimited: reader.boolean(&section, "allow_unlimited", false),
    };
    if limits.max_budget.default.is_some_and(|default| default.is_zero()) {
        reader
            .warnings
            .push(format!("{}.max_budget.default: 0 blocks the team of every resource that is ordered without a budget", section.path));
    }
    limits
}

fn on_downscale(reader: &mut Reader<'_>, offering: &Section) -> OnDownscale {
    const KEY: &str = "on_downscale";
    let path = offering.path_of(KEY);
    let mapping = reader.mapping(offering, KEY);
    if mapping.is_none() && !reader.env.has_below(&path) {
        reader.choice(offering, KEY, &[("block", ())]);
        return OnDownscale::Block;
    }
    let section = match mapping {
        Some((node, place)) => reader.open(path, Some(node), place),
        None => reader.open(path, None, Place::Absent),
    };
    let before = reader.problems.len();
    let mut count = |key| {
        let value = reader.rate(&section, key)?;
        let count = u64::try_from(value).ok();
        if count.is_none() {
            reader.fault(&section, key, "is too large");
        }
        count
    };
    let (tpm_limit, rpm_limit) = (count("tpm_limit"), count("rpm_limit"));
    let limits = TeamLimits { max_budget: reader.decimal(&section, "max_budget"), tpm_limit, rpm_limit };
    if limits == TeamLimits::default() && reader.problems.len() == before {
        let message = "names no limit; write max_budget, tpm_limit or rpm_limit, or the word block";
        reader.fault(offering, KEY, message);
    }
    OnDownscale::Reduce(limits)
}

#[derive(Clone, Copy, PartialEq)]
enum Store {
    Directory,
    Kubernetes,
}

/// The store, and what is restarted when a Secret in it changes.
fn secrets(reader: &mut Reader<'_>, root: &Section) -> Option<(SecretsConfig, Option<RestartConfig>)> {
    let section = reader.section(root, "secrets");
    reader.required(&section, "store")?;
    let store = reader.choice(&section, "store", &[("directory", Store::Directory), ("kubernetes", Store::Kubernetes)])?;
    let (foreign, name): (&[&str], &str) = match store {
        Store::Directory => (&["kubeconfig", "context", "api_url", "timeout", "chat_namespace", "key_namespace", "restart"], "kubernetes"),
        Store::Kubernetes => (&["path"], "directory"),
    };
    for key in foreign {
        if reader.is_set(&section, key) {
            reader.fault(&section, key, format!("belongs to store: {name}; take it out, or choose that store"));
        }
    }
    if store == Store::Directory {
        let path = reader.required(&section, "path").map(PathBuf::from)?;
        return Some((SecretsConfig::Directory { path }, None));
    }
    let kubeconfig = reader.path(&section, "kubeconfig");
    let context = reader.text(&section, "context");
    let api_url = reader.url(&section, "api_url");
    reader.guard_http(&section, "api_url", api_url.as_ref(), false, "name a local proxy on loopback");
    let timeout = reader.duration(&section, "timeout", seconds(15));
    if api_url.is_some() && (kubeconfig.is_some() || context.is_some()) {
        reader.fault(&section, "api_url", "is set, and kubeconfig or context too; keep one");
    }
    let chat = match by_project(reader, &section, "chat_namespace", "the name of a namespace") {
        Some(map) => map.map(ChatNamespaces::PerProject),
        None => reader.required_name(&section, "chat_namespace", dns_label).map(ChatNamespaces::One),
    };
    let key_namespace = reader.required_name(&section, "key_namespace", dns_label);
    let restart = match by_project(reader, &section, "restart", "the name of a Deployment") {
        Some(map) => map.map(RestartConfig::PerProject),
        None => reader.name(&section, "restart", dns_label).map(RestartConfig::One),
    };
    Some((SecretsConfig::Kubernetes { kubeconfig, context, api_url, timeout, chat: chat?, key_namespace: key_namespace? }, restart))
}

/// A mapping from project UUIDs to names of one kind; nothing where the field is no mapping, and `Some(None)` where it is one
/// without any project.
fn by_project(reader: &mut Reader<'_>, section: &Section, key: &str, what: &str) -> Option<Option<BTreeMap<Uuid, String>>> {
    let (node, place) = reader.mapping(section, key)?;
    let Kind::Map(entries) = node.kind else {
        return None;
    };
    let path = section.path_of(key);
    let mut names = BTreeMap::new();
    for entry in entries {
        let at = |pos: Pos| match &place {
            Place::Variable(name) => Place::Variable(name.clone()),
            _ => Place::File(pos),
        };
        let project = match entry.key.as_deref().map(reader::uuid) {
            Some(Ok(project)) => project,
            _ => {
                let message = "a key is not the UUID of a project: write 32 hexadecimal digits, with or without hyphens";
                reader.problem(&at(entry.key_pos), &path, message);
                continue;
            }
        };
        let field = format!("{path}.{}", project.simple());
        match &entry.value.kind {
            Kind::Scalar { text, .. } => match dns_label(text) {
                Ok(()) => {
                    if names.insert(project, text.clone()).is_some() {
                        reader.problem(&at(entry.key_pos), &field, "is written twice; keep one");
                    }
                }
                Err(wrong) => reader.problem(&at(entry.value.pos), &field, wrong),
            },
            _ => reader.problem(&at(entry.value.pos), &field, format!("has to be {what}")),
        }
    }
    if names.is_empty() {
        reader.fault(section, key, format!("names no project; write {what}, or a mapping from project UUIDs to such names"));
        return Some(None);
    }
    Some(Some(names))
}

#[cfg(test)]
mod tests;
