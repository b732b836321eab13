//! The Secrets that hand a key to a project and to its Open WebUI, in Kubernetes or in a directory.
//!
//! A Secret is the journal of a key: it is written first, and everything needed to go on after a crash stands on it
//! in labels and annotations. The variables are what a pod or `docker run --env-file` reads. A Secret is found by
//! its labels, never by its name, and is changed only on the version that was read.

mod directory;
mod kubernetes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::events::Events;
pub use directory::Directory;
pub use kubernetes::{Kubernetes, Namespaces};

/// The value of [`MANAGED_BY`] on everything that is ours.
const AGENT: &str = crate::domain::MANAGED_BY;

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const PART_OF: &str = "app.kubernetes.io/part-of";
const COMPONENT: &str = "app.kubernetes.io/component";
const INSTANCE: &str = "app.kubernetes.io/instance";
const OWNER: &str = "llm-access.io/owner";
const OFFERING: &str = "llm-access.io/offering";
const RESOURCE: &str = "llm-access.io/resource";
const SLOT: &str = "llm-access.io/slot";
const PROJECT: &str = "llm-access.io/project";
const KEY_SHA256: &str = "llm-access.io/key-sha256";
const ALIAS: &str = "llm-access.io/key-alias";
const NUMBER: &str = "llm-access.io/key-number";
const STATE: &str = "llm-access.io/state";
const ORDER: &str = "llm-access.io/order";
const BASE_URL: &str = "llm-access.io/base-url";
const MODELS: &str = "llm-access.io/models";
const EMBEDDER: &str = "llm-access.io/embedder";
/// That the key is to be replaced: `grace` or `now`, a colon, and the number of the key that is meant, so that a word that
/// stays behind asks for nothing.
const ROTATE: &str = "llm-access.io/rotate";
/// The digest of the key that served before this one, while it may still be used.
const RETIRING: &str = "llm-access.io/retiring-key-sha256";
/// Until when that is, as soon as it is known.
const RETIRING_UNTIL: &str = "llm-access.io/retiring-key-until";
/// Restarts the pods that read the Secret, where Stakater's reloader runs: Open WebUI reads its variables at start only.
const RELOADER: &str = "reloader.stakater.com/match";
/// The number of the format in which a Secret was written. See [`Later`].
const FORMAT: &str = "llm-access.io/format";

/// The format that this version writes. It goes up with each label, annotation or variable that is added; what is there
/// keeps its name and its meaning.
const CURRENT: u32 = 1;
/// What labels and annotations of ours begin with, in this version and in later ones.
const PREFIX: &str = "llm-access.io/";
/// Every label of that kind that this version writes.
const LABELS: [&str; 4] = [OWNER, OFFERING, RESOURCE, SLOT];
/// Every annotation of that kind that this version writes.
const ANNOTATIONS: [&str; 13] =
    [PROJECT, KEY_SHA256, ALIAS, NUMBER, STATE, ORDER, BASE_URL, MODELS, EMBEDDER, ROTATE, RETIRING, RETIRING_UNTIL, FORMAT];

/// Which of the two keys of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// The key that people use in their own programs.
    Project,
    /// The key of the project's Open WebUI.
    Chat,
}

impl Slot {
    /// `project` or `chat`, as labels and metadata spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Chat => "chat",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Project, Self::Chat].into_iter().find(|slot| slot.as_str() == text)
    }

    /// Every variable that this version writes.
    fn all_variables(self) -> &'static [&'static str] {
        match self {
            Self::Project => &["OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODELS"],
            Self::Chat => &[
                "OPENAI_API_BASE_URLS",
                "OPENAI_API_KEYS",
                "OPENAI_API_CONFIGS",
                "ENABLE_OPENAI_API",
                "ENABLE_OLLAMA_API",
                "ENABLE_PERSISTENT_CONFIG",
                "BYPASS_MODEL_ACCESS_CONTROL",
                "RAG_EMBEDDING_ENGINE",
                "RAG_EMBEDDING_MODEL",
                "RAG_OPENAI_API_BASE_URL",
                "RAG_OPENAI_API_KEY",
            ],
        }
    }

    /// The variables that carry the key.
    fn key_variables(self) -> &'static [&'static str] {
        match self {
            Self::Project => &["OPENAI_API_KEY"],
            Self::Chat => &["OPENAI_API_KEYS", "RAG_OPENAI_API_KEY"],
        }
    }
}

/// How far a key is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretState {
    /// Stored; the gateway may not know the key yet.
    Pending,
    /// The key was seen working.
    Ready,
}

impl SecretState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Ready => "ready",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Pending, Self::Ready].into_iter().find(|state| state.as_str() == text)
    }
}

/// Where the replacement of a key stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Rotation {
    /// None is under way.
    #[default]
    None,
    /// The key is to be replaced.
    Wanted {
        /// The old key goes as soon as the new one works, for one that leaked; otherwise it serves on for a while.
        at_once: bool,
    },
    /// The key was replaced, and its predecessor serves on.
    Retiring {
        /// The sha256 of the old key in hexadecimal, as the gateway addresses it.
        hash: String,
        /// When the old key goes; not known before the new one works.
        until: Option<Timestamp>,
    },
}

impl Rotation {
    fn annotations(&self, number: u32) -> Vec<(&'static str, String)> {
        match self {
            Self::None => Vec::new(),
            Self::Wanted { at_once } => vec![(ROTATE, format!("{}:{number}", if *at_once { "now" } else { "grace" }))],
            Self::Retiring { hash, until } => {
                let mut pairs = vec![(RETIRING, hash.clone())];
                pairs.extend(until.map(|until| (RETIRING_UNTIL, until.to_string())));
                pairs
            }
        }
    }

    /// Reads it back. What makes no sense asks for nothing and keeps nothing alive.
    fn parse(wanted: Option<&str>, hash: Option<&str>, until: Option<&str>, number: u32) -> Self {
        let wanted = wanted.and_then(|text| text.split_once(':'));
        match wanted.filter(|(_, of)| of.parse() == Ok(number)) {
            Some(("grace", _)) => return Self::Wanted { at_once: false },
            Some(("now", _)) => return Self::Wanted { at_once: true },
            _ => {}
        }
        match (hash, until.map(str::parse::<Timestamp>)) {
            (Some(hash), None) => Self::Retiring { hash: hash.to_owned(), until: None },
            (Some(hash), Some(Ok(until))) => Self::Retiring { hash: hash.to_owned(), until: Some(until) },
            _ => Self::None,
        }
    }
}

/// What the agent wants stored for one slot of one resource.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Which key.
    pub slot: Slot,
    /// The Waldur resource.
    pub resource: Uuid,
    /// Its offering.
    pub offering: Uuid,
    /// Its project; chooses the namespace of a chat Secret.
    pub project: Option<Uuid>,
    /// The Secret's name from [`secret_name`]. One that exists keeps the name it has.
    pub name: String,
    /// The key's alias at the gateway; Waldur's `client_id` in the project slot.
    pub alias: String,
    /// The number within the alias; never used twice.
    pub number: u32,
    /// How far the key is.
    pub state: SecretState,
    /// The key.
    pub key: SecretString,
    /// The OpenAI-compatible address, `https://…/v1`.
    pub base_url: String,
    /// The models that may be called.
    pub models: Vec<String>,
    /// The model that Open WebUI uses for retrieval; chat only.
    pub embedder: Option<String>,
    /// The order that last had a part in it.
    pub order: Option<Uuid>,
    /// Where the replacement of the key stands.
    pub rotation: Rotation,
}

impl PartialEq for Connection {
    fn eq(&self, other: &Self) -> bool {
        // Taken apart so that a field which is added later cannot be forgotten here.
        let Self { slot, resource, offering, project, name, alias, number, state, key, base_url, models, embedder, order, rotation } = self;
        *slot == other.slot
            && *resource == other.resource
            && *offering == other.offering
            && *project == other.project
            && *name == other.name
            && *alias == other.alias
            && *number == other.number
            && *state == other.state
            && key.expose_secret() == other.key.expose_secret()
            && *base_url == other.base_url
            && *models == other.models
            && *embedder == other.embedder
            && *order == other.order
            && *rotation == other.rotation
    }
}

impl Eq for Connection {}

impl Connection {
    /// The variables of the Secret. None is ever empty; one without a value is left out.
    ///
    /// In the chat slot these are the settings under which Open WebUI 0.12.4 was measured to use exactly this
    /// connection and to follow changes: plural names without a trailing slash, no persistent configuration, and the
    /// addresses of retrieval spelt out, since they point at a public API otherwise.
    #[must_use]
    pub fn variables(&self) -> BTreeMap<String, SecretString> {
        let url = self.base_url.trim_end_matches('/').to_owned();
        let key = self.key.expose_secret().to_owned();
        let pairs: Vec<(&str, String)> = match self.slot {
            Slot::Project => vec![("OPENAI_API_KEY", key), ("OPENAI_BASE_URL", url), ("OPENAI_MODELS", self.models.join(","))],
            Slot::Chat => {
                // An embedding model in the list of models to talk to would only fail.
                let talk: Vec<&String> = self.models.iter().filter(|model| Some(*model) != self.embedder.as_ref()).collect();
                // No model ids would mean all that the gateway lists, so an empty connection is switched off.
                let config = json!({"0": {
                    "enable": !talk.is_empty(),
                    "model_ids": talk,
                    "connection_type": "external",
                    "auth_type": "bearer",
                }});
                let mut pairs = vec![
                    ("OPENAI_API_BASE_URLS", url.clone()),
                    ("OPENAI_API_KEYS", key.clone()),
                    ("OPENAI_API_CONFIGS", config.to_string()),
                    ("ENABLE_OPENAI_API", "true".to_owned()),
                    ("ENABLE_OLLAMA_API", "false".to_owned()),
                    ("ENABLE_PERSISTENT_CONFIG", "false".to_owned()),
                    ("BYPASS_MODEL_ACCESS_CONTROL", "true".to_owned()),
                ];
                if let Some(embedder) = &self.embedder {
                    pairs.extend([
                        ("RAG_EMBEDDING_ENGINE", "openai".to_owned()),
                        ("RAG_EMBEDDING_MODEL", embedder.clone()),
                        ("RAG_OPENAI_API_BASE_URL", url),
                        ("RAG_OPENAI_API_KEY", key),
                    ]);
                }
                pairs
            }
        };
        pairs.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name.to_owned(), SecretString::from(value))).collect()
    }

    /// Why this connection must not be written, or nothing.
    fn fault(&self) -> Option<String> {
        // Open WebUI splits keys and addresses at semicolons, an env file at line ends.
        let unfit = |text: &str| text.is_empty() || text.chars().any(|c| c.is_control() || c.is_whitespace() || c == ';');
        if !is_dns_label(&self.name) {
            return Some(format!("{:?} is no legal name for a Secret", self.name));
        }
        if unfit(self.key.expose_secret()) {
            return Some("the key is empty, or holds a space, a line end, a control character or a semicolon".to_owned());
        }
        if unfit(&self.base_url) {
            return Some(format!("the address {:?} is empty, or holds a space, a control character or a semicolon", self.base_url));
        }
        let odd = |name: &&String| name.trim().is_empty() || name.contains(',') || name.chars().any(char::is_control);
        self.models
            .iter()
            .chain(&self.embedder)
            .find(odd)
            .map(|name| format!("the model name {name:?} is empty, or holds a comma or a control character"))
    }
}

/// A Secret of ours as it was read.
#[derive(Debug, Clone)]
pub struct Stored {
    /// What it says.
    pub connection: Connection,
    /// False when it does not hold exactly the variables that its connection gives: one is missing or was changed by
    /// hand. The key itself is intact.
    pub complete: bool,
    /// When it was made.
    pub created: Option<Timestamp>,
    later: Later,
    version: Version,
}

/// What a later version of the agent wrote on a Secret and this one does not know: kept as it is, so that a rollback loses
/// nothing and replicas of two versions do not undo each other's writes. On a Secret of this format or an older one, what we
/// once wrote and would not write any more goes.
#[derive(Debug, Clone, Default)]
struct Later {
    /// The format of the Secret; 0 where no later version wrote it.
    format: u32,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    data: BTreeMap<String, SecretString>,
}

impl Later {
    /// The same for another key: a variable that held the old one holds the new one.
    fn with_key(&self, old: &SecretString, new: &SecretString) -> Self {
        let mut later = self.clone();
        for value in later.data.values_mut().filter(|value| value.expose_secret() == old.expose_secret()) {
            *value = new.clone();
        }
        later
    }
}

/// A Secret with our mark that cannot be read back: its key is gone or is not the one we stored, or what stands on it
/// makes no sense.
#[derive(Debug, Clone)]
pub struct Broken {
    /// Its name.
    pub name: String,
    /// The resource, if that can still be told.
    pub resource: Option<Uuid>,
    /// The slot, if that can still be told.
    pub slot: Option<Slot>,
    /// The number of its key, if that can still be told; it must not be used again.
    pub number: Option<u32>,
    /// What is wrong with it.
    pub why: String,
    version: Version,
}

/// A Secret with our mark as it was read: one that can be used, or one that cannot.
pub type Read = Result<Stored, Box<Broken>>;

/// Secrets of ours, in no particular order.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// Those that can be used.
    pub stored: Vec<Stored>,
    /// Those that cannot.
    pub broken: Vec<Broken>,
}

/// What a create-only write met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// The Secret is new.
    Made,
    /// There was one under this name, ours or not; nothing was written.
    Exists,
}

/// The version that a change is based on.
#[derive(Debug, Clone)]
enum Version {
    File(directory::Version),
    Kubernetes(Box<llm_access_k8s::Stored>),
    /// One of all the Secrets of a cluster, seen in passing. Nothing can be based on it: whoever writes reads the Secrets of
    /// the one resource first. Kept whole they would be the most of what the agent needs of memory.
    Unkept {
        uid: String,
    },
}

impl Stored {
    /// A digest of everything that a pod reads from it. Nothing can be guessed from it: the key is random.
    pub(crate) fn digest(&self) -> String {
        let mut digest = Sha256::new();
        match &self.version {
            Version::Kubernetes(stored) => digest.update(stored.uid.as_bytes()),
            Version::Unkept { uid } => digest.update(uid.as_bytes()),
            Version::File(_) => {}
        }
        for (name, value) in self.connection.variables() {
            for part in [name.as_str(), value.expose_secret()] {
                digest.update(part.len().to_be_bytes());
                digest.update(part.as_bytes());
            }
        }
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
impl Stored {
    /// A Secret that was never read from anywhere, for the planner's tests.
    pub(crate) fn imagined(connection: Connection, complete: bool, created: Option<Timestamp>) -> Self {
        Self { connection, complete, created, later: Later::default(), version: Version::File(directory::Version::default()) }
    }
}

#[cfg(test)]
impl Broken {
    /// A Secret without its key, for the planner's tests.
    pub(crate) fn imagined(name: &str, resource: Uuid, slot: Slot, number: u32) -> Self {
        let version = Version::File(directory::Version::default());
        Self { name: name.into(), resource: Some(resource), slot: Some(slot), number: Some(number), why: "it has no key".into(), version }
    }
}

/// Why a Secret could not be read or written. Never holds a value.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Not now.
    #[error("{object}: {why}; it is tried again")]
    Transient {
        /// The Secret, folder or namespace.
        object: String,
        /// The cause.
        why: String,
        /// How long the store asks us to wait.
        retry_after: Option<Duration>,
    },
    /// Not before an operator acts.
    #[error("{object}: {why}; {cure}")]
    Denied {
        /// The Secret, folder or namespace.
        object: String,
        /// The cause.
        why: String,
        /// What to do.
        cure: String,
    },
    /// Somebody else wrote: read again.
    #[error("{object}: {why}")]
    Conflict {
        /// The Secret.
        object: String,
        /// Who or what changed.
        why: String,
    },
    /// Another field manager owns what we want to change, and only people can say whose word counts.
    #[error("{object}: {why}; {cure}")]
    Taken {
        /// The Secret.
        object: String,
        /// Who owns which field.
        why: String,
        /// What to do.
        cure: String,
    },
    /// Something that is not ours bears this name.
    #[error("Secret {name} exists and is not managed by this agent; remove or rename it")]
    Foreign {
        /// The name.
        name: String,
    },
    /// What was to be written is refused, now and later.
    #[error("{object}: refused: {why}")]
    Invalid {
        /// The Secret.
        object: String,
        /// The cause.
        why: String,
    },
}

/// Where the Secrets are kept. Cheap to clone.
#[derive(Debug, Clone)]
pub enum SecretStore {
    /// In files.
    Directory(Directory),
    /// In a cluster.
    Kubernetes(Kubernetes),
}

impl SecretStore {
    /// All Secrets of this owner: complete or an error.
    ///
    /// # Errors
    /// `Transient` or `Denied`.
    pub async fn list_all(&self) -> Result<Listed, StoreError> {
        let mut all = Vec::new();
        self.each(|read| all.push(read)).await?;
        Ok(all.into_iter().collect())
    }

    /// Like [`Self::list_all`], one after the other. What was taken before an error says nothing.
    ///
    /// # Errors
    /// `Transient` or `Denied`.
    pub async fn each(&self, mut take: impl FnMut(Read) + Send) -> Result<(), StoreError> {
        match self {
            Self::Directory(store) => store.all().await?.into_iter().for_each(take),
            Self::Kubernetes(store) => {
                for namespace in store.namespaces() {
                    store.all_in(namespace).await?.into_iter().for_each(&mut take);
                }
            }
        }
        Ok(())
    }

    /// The Secrets of one resource. The project says where its chat Secret lives; without it, all places are searched.
    ///
    /// # Errors
    /// `Transient` or `Denied`.
    pub async fn of_resource(&self, resource: Uuid, project: Option<Uuid>) -> Result<Listed, StoreError> {
        match self {
            Self::Directory(store) => store.of_resource(resource).await,
            Self::Kubernetes(store) => store.of_resource(resource, project).await,
        }
    }

    /// Makes a Secret under a name that is free.
    ///
    /// # Errors
    /// `Invalid` for a key or address that would break the variables; `Denied`, also when no namespace is configured for
    /// the project.
    pub async fn create(&self, connection: &Connection) -> Result<Created, StoreError> {
        sound(connection)?;
        match self {
            Self::Directory(store) => store.create(connection).await,
            Self::Kubernetes(store) => store.create(connection).await,
        }
    }

    /// Brings a Secret up to date under the name it has. No call when nothing differs.
    ///
    /// # Errors
    /// `Conflict` when somebody wrote since it was read, `Taken` when another field manager owns one of our variables.
    pub async fn update(&self, stored: &Stored, connection: &Connection) -> Result<(), StoreError> {
        let connection = renamed(connection, &stored.connection.name);
        sound(&connection)?;
        let later = stored.later.with_key(&stored.connection.key, &connection.key);
        match (self, &stored.version) {
            (Self::Directory(store), Version::File(version)) => store.write(&connection, &later, version).await,
            (Self::Kubernetes(store), Version::Kubernetes(base)) => store.apply(&connection, &later, base).await,
            _ => Err(no_base(&connection.name)),
        }
    }

    /// Puts a new connection into a broken Secret, taking our variables back from whoever changed them. It is written anew, as
    /// this version writes it.
    ///
    /// # Errors
    /// `Conflict` when somebody wrote since it was read.
    pub async fn replace_broken(&self, broken: &Broken, connection: &Connection) -> Result<(), StoreError> {
        let connection = renamed(connection, &broken.name);
        sound(&connection)?;
        match (self, &broken.version) {
            (Self::Directory(store), Version::File(version)) => store.write(&connection, &Later::default(), version).await,
            (Self::Kubernetes(store), Version::Kubernetes(base)) => store.overwrite(&connection, base).await,
            _ => Err(no_base(&connection.name)),
        }
    }

    /// Deletes a Secret. One that is gone is a success.
    ///
    /// # Errors
    /// `Conflict` when somebody wrote since it was read.
    pub async fn delete(&self, stored: &Stored) -> Result<(), StoreError> {
        self.remove(&stored.connection.name, &stored.version).await
    }

    /// Deletes a broken Secret. One that is gone is a success.
    ///
    /// # Errors
    /// `Conflict` when somebody wrote since it was read.
    pub async fn delete_broken(&self, broken: &Broken) -> Result<(), StoreError> {
        self.remove(&broken.name, &broken.version).await
    }

    async fn remove(&self, name: &str, version: &Version) -> Result<(), StoreError> {
        match (self, version) {
            (Self::Directory(store), Version::File(version)) => store.delete(name, version).await,
            (Self::Kubernetes(store), Version::Kubernetes(base)) => store.delete(base).await,
            _ => Err(no_base(name)),
        }
    }

    /// Where events about the Secrets are made.
    #[must_use]
    pub fn events(&self) -> &Events {
        static OFF: Events = Events::off();
        match self {
            Self::Directory(_) => &OFF,
            Self::Kubernetes(store) => store.events(),
        }
    }

    /// Whether events may be made where the Secrets are; `None` where they are off.
    pub(crate) async fn check_events(&self) -> Option<Result<String, StoreError>> {
        match self {
            Self::Directory(_) => None,
            Self::Kubernetes(store) => store.check_events().await,
        }
    }

    /// The Deployments of the cluster, where there is one.
    pub(crate) fn deployments(&self) -> Option<llm_access_k8s::Deployments> {
        match self {
            Self::Directory(_) => None,
            Self::Kubernetes(store) => Some(store.deployments()),
        }
    }

    /// The namespace of a project's chat Secret, where there are namespaces and the project has one.
    pub(crate) fn chat_namespace(&self, project: Option<Uuid>) -> Option<&str> {
        match self {
            Self::Directory(_) => None,
            Self::Kubernetes(store) => store.chat_namespace(project),
        }
    }

    /// Tells whoever looks at a Secret of others that it stands in the way of one of ours.
    pub(crate) fn tell_foreign(&self, slot: Slot, project: Option<Uuid>, name: &str, why: &str) {
        if let Self::Kubernetes(store) = self {
            store.tell_foreign(slot, project, name, why);
        }
    }

    /// Tries what the agent needs of the store, changing nothing. Says what it found.
    ///
    /// # Errors
    /// What is missing, and what to do about it.
    pub async fn check(&self) -> Result<String, StoreError> {
        match self {
            Self::Directory(store) => store.check().await,
            Self::Kubernetes(store) => store.check().await,
        }
    }
}

fn renamed(connection: &Connection, name: &str) -> Connection {
    Connection { name: name.to_owned(), ..connection.clone() }
}

fn sound(connection: &Connection) -> Result<(), StoreError> {
    match connection.fault() {
        None => Ok(()),
        Some(why) => Err(StoreError::Invalid { object: format!("Secret {}", connection.name), why }),
    }
}

fn no_base(name: &str) -> StoreError {
    let why = "it was only seen among all others, or in another store, and has to be read first".to_owned();
    StoreError::Conflict { object: format!("Secret {name}"), why }
}

/// The name of a Secret: `llm-key-<slug>-<uuid8>` or `llm-webui-<slug>-<uuid8>`, whatever the slug holds: at most 63 of
/// `a-z`, `0-9` and `-`, which is legal in Kubernetes and harmless in a path.
#[must_use]
pub fn secret_name(slot: Slot, slug: &str, resource: Uuid) -> String {
    const LONGEST: usize = 63;
    let prefix = match slot {
        Slot::Project => "llm-key",
        Slot::Chat => "llm-webui",
    };
    let suffix = short(resource);
    let room = LONGEST - prefix.len() - suffix.len() - 2;
    let mut middle = String::new();
    for c in slug.chars() {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            middle.push(c);
        } else if !middle.is_empty() && !middle.ends_with('-') {
            middle.push('-');
        }
        if middle.len() >= room {
            break;
        }
    }
    match middle.trim_end_matches('-') {
        "" => format!("{prefix}-{suffix}"),
        middle => format!("{prefix}-{middle}-{suffix}"),
    }
}

/// The first eight digits of a uuid.
fn short(uuid: Uuid) -> String {
    uuid.simple().to_string().chars().take(8).collect()
}

/// An owner as a label can hold it: as it is, or a digest of it.
fn owner_label(owner: &str) -> String {
    let bytes = owner.as_bytes();
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let legal = bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    // The prefix of a digest is refused as an owner of its own, so that no owner can pose as another.
    if legal && !owner.starts_with("sha256-") {
        owner.to_owned()
    } else {
        let digest: String = sha256(bytes).chars().take(40).collect();
        format!("sha256-{digest}")
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn is_dns_label(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

// ---- a connection as labels, annotations and variables, and back --------------------------------------------

/// A connection as a store writes it.
#[derive(Debug, Clone)]
struct Draft {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    data: BTreeMap<String, SecretString>,
}

impl Draft {
    fn new(connection: &Connection, later: &Later, owner: &str) -> Self {
        let component = match connection.slot {
            Slot::Project => "api-key",
            Slot::Chat => "open-webui",
        };
        let resource = connection.resource.simple().to_string();
        let labels = [
            (MANAGED_BY, AGENT.to_owned()),
            (PART_OF, "llm-access".to_owned()),
            (COMPONENT, component.to_owned()),
            (INSTANCE, resource.clone()),
            (OWNER, owner_label(owner)),
            (OFFERING, connection.offering.simple().to_string()),
            (RESOURCE, resource),
            (SLOT, connection.slot.as_str().to_owned()),
        ];
        let mut annotations = vec![
            (KEY_SHA256, sha256(connection.key.expose_secret().as_bytes())),
            (ALIAS, connection.alias.clone()),
            (NUMBER, connection.number.to_string()),
            (STATE, connection.state.as_str().to_owned()),
            (BASE_URL, connection.base_url.clone()),
            (MODELS, json!(connection.models).to_string()),
            (FORMAT, CURRENT.max(later.format).to_string()),
        ];
        let uuid = |uuid: Uuid| uuid.simple().to_string();
        annotations.extend(connection.project.map(|project| (PROJECT, uuid(project))));
        annotations.extend(connection.order.map(|order| (ORDER, uuid(order))));
        annotations.extend(connection.embedder.clone().map(|model| (EMBEDDER, model)));
        annotations.extend(connection.rotation.annotations(connection.number));
        if connection.slot == Slot::Chat {
            annotations.push((RELOADER, "true".to_owned()));
        }
        let owned = |(key, value): (&str, String)| (key.to_owned(), value);
        let mut draft = Self {
            labels: labels.into_iter().map(owned).collect(),
            annotations: annotations.into_iter().map(owned).collect(),
            data: connection.variables(),
        };
        draft.labels.extend(later.labels.clone());
        draft.annotations.extend(later.annotations.clone());
        draft.data.extend(later.data.clone());
        draft
    }
}

/// A Secret with our mark, before it is understood.
struct Record {
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    data: BTreeMap<String, SecretString>,
    /// The variables that we wrote, whether or not we would still write them.
    owned: BTreeSet<String>,
    created: Option<Timestamp>,
    version: Version,
}

impl FromIterator<Read> for Listed {
    fn from_iter<I: IntoIterator<Item = Read>>(read: I) -> Self {
        let mut listed = Self::default();
        for one in read {
            match one {
                Ok(stored) => listed.stored.push(stored),
                Err(broken) => listed.broken.push(*broken),
            }
        }
        listed
    }
}

impl Record {
    fn read(self, owner: &str) -> Read {
        match self.connection() {
            Ok(connection) => {
                let later = self.later(connection.slot);
                let complete = self.holds(&Draft::new(&connection, &later, owner));
                Ok(Stored { connection, complete, created: self.created, later, version: self.version })
            }
            Err(why) => Err(Box::new(Broken {
                resource: self.uuid(&self.labels, RESOURCE).ok(),
                slot: self.labels.get(SLOT).and_then(|slot| Slot::parse(slot)),
                number: self.annotations.get(NUMBER).and_then(|n| n.parse().ok()),
                name: self.name,
                why,
                version: self.version,
            })),
        }
    }

    /// The format of a later version, or nothing.
    fn later_format(&self) -> Option<u32> {
        self.annotations.get(FORMAT)?.parse().ok().filter(|format| *format > CURRENT)
    }

    fn later(&self, slot: Slot) -> Later {
        let Some(format) = self.later_format() else { return Later::default() };
        let unknown = |all: &BTreeMap<String, String>, known: &[&str]| -> BTreeMap<String, String> {
            let pairs = all.iter().filter(|(key, _)| key.starts_with(PREFIX) && !known.contains(&key.as_str()));
            pairs.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let written = self.data.iter().filter(|(key, _)| self.owned.contains(*key) && !slot.all_variables().contains(&key.as_str()));
        Later {
            format,
            labels: unknown(&self.labels, &LABELS),
            annotations: unknown(&self.annotations, &ANNOTATIONS),
            data: written.map(|(key, value)| (key.clone(), value.clone())).collect(),
        }
    }

    /// What the Secret says, or why it cannot be used.
    fn connection(&self) -> Result<Connection, String> {
        let annotation = |key: &str| self.annotations.get(key).map(String::as_str).filter(|value| !value.is_empty());
        let required = |key: &str| annotation(key).ok_or_else(|| format!("annotation {key} is missing"));
        let optional = |key: &str| match annotation(key) {
            None => Ok(None),
            Some(_) => self.uuid(&self.annotations, key).map(Some),
        };
        let slot = self.labels.get(SLOT).and_then(|slot| Slot::parse(slot));
        let slot = slot.ok_or_else(|| format!("label {SLOT} is missing or unknown"))?;
        let unreadable = |key: &str| format!("annotation {key} makes no sense");
        let number = required(NUMBER)?.parse().map_err(|_| unreadable(NUMBER))?;
        // A later version may have more states than two; in each of them the key has only to be proven once more.
        let state = match SecretState::parse(required(STATE)?) {
            None if self.later_format().is_some() => SecretState::Pending,
            state => state.ok_or_else(|| unreadable(STATE))?,
        };
        let connection = Connection {
            slot,
            resource: self.uuid(&self.labels, RESOURCE)?,
            offering: self.uuid(&self.labels, OFFERING)?,
            project: optional(PROJECT)?,
            name: self.name.clone(),
            alias: required(ALIAS)?.to_owned(),
            number,
            state,
            key: self.key(slot, required(KEY_SHA256)?)?,
            base_url: required(BASE_URL)?.to_owned(),
            models: serde_json::from_str(required(MODELS)?).map_err(|_| unreadable(MODELS))?,
            embedder: annotation(EMBEDDER).map(str::to_owned),
            order: optional(ORDER)?,
            rotation: Rotation::parse(annotation(ROTATE), annotation(RETIRING), annotation(RETIRING_UNTIL), number),
        };
        match connection.fault() {
            None => Ok(connection),
            Some(why) => Err(why),
        }
    }

    /// The key that we stored, proven by its digest. One that somebody else put there is never taken over: whoever may write
    /// Secrets could choose the key of a project then.
    fn key(&self, slot: Slot, digest: &str) -> Result<SecretString, String> {
        let values = slot.key_variables().iter().filter_map(|name| self.data.get(*name));
        for value in values {
            if sha256(value.expose_secret().as_bytes()) == digest {
                return Ok(value.clone());
            }
        }
        let first = slot.key_variables().first().copied().unwrap_or_default();
        Err(match self.data.get(first).map(|value| value.expose_secret().is_empty()) {
            None => format!("variable {first} is missing"),
            Some(true) => format!("variable {first} is empty"),
            Some(false) => format!("variable {first} does not hold the key that was stored"),
        })
    }

    fn uuid(&self, from: &BTreeMap<String, String>, key: &str) -> Result<Uuid, String> {
        let text = from.get(key).map(String::as_str).unwrap_or_default();
        Uuid::parse_str(text).map_err(|_| format!("{key} is missing or no uuid"))
    }

    fn holds(&self, draft: &Draft) -> bool {
        let same =
            |key: &String, value: &SecretString| self.data.get(key).is_some_and(|stored| stored.expose_secret() == value.expose_secret());
        draft.data.iter().all(|(key, value)| same(key, value))
            && draft.labels.iter().all(|(key, value)| self.labels.get(key) == Some(value))
            && draft.annotations.iter().all(|(key, value)| self.annotations.get(key) == Some(value))
            && self.owned.iter().all(|key| draft.data.contains_key(key) || !self.data.contains_key(key))
    }
}

#[cfg(test)]
mod tests;
