//! Restarts the Open WebUI that reads a chat Secret when the Secret has changed: Open WebUI reads its variables at start only.
//!
//! As everything else it is level-triggered. The pod template of the Deployment carries a digest of the Secrets it reads, and
//! changing that makes the cluster replace the pods; a crash before it leaves it to the next pass, one after it finds the
//! digest there. It waits for a key that works, so that no pod starts with one that does not.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use llm_access_k8s::Subject;
use sha2::{Digest as _, Sha256};
use tracing::Instrument as _;
use waldur_client::ResourceState;

use crate::agent::Agent;
use crate::clock::after;
use crate::config::{ChatNamespaces, RestartConfig, SecretsConfig};
use crate::observe::World;
use crate::secrets::{SecretState, Slot, Stored};

/// The annotation of the pod template that holds the digest.
const SECRET_HASH: &str = "llm-access.io/secret-hash";

const NOT_RESTARTED: &str = "webui-not-restarted";

/// A Deployment, by namespace and name.
type Place = (String, String);

/// What is known about the restart of one Deployment.
#[derive(Clone, Debug)]
pub(crate) struct Restarted {
    digest: String,
    /// When it was last looked at.
    at: Timestamp,
    state: Restart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restart {
    UnderWay,
    Done,
    Failed,
}

impl Agent {
    /// Begins the restarts that are due. Returns without waiting for them.
    pub(crate) fn restart_webuis(&self, world: &World) {
        for (place, digest) in self.restarts_wanted(world) {
            if self.is_restart_due(&place, &digest) {
                self.begin_restart(place, digest);
            }
        }
    }

    /// Each Deployment that reads chat Secrets, and the digest of those; none where one of them is not ready yet.
    fn restarts_wanted(&self, world: &World) -> BTreeMap<Place, String> {
        let mut readers: BTreeMap<Place, Option<Vec<&Stored>>> = BTreeMap::new();
        let Some(restart) = &self.config.restart else { return BTreeMap::new() };
        for (id, listed) in &world.secrets {
            let Some((_, resource)) = world.resources.get(id) else { continue };
            let resource = resource.bare();
            let Some(deployment) = restart.of(resource.project) else { continue };
            let Some(namespace) = self.secrets.chat_namespace(resource.project) else { continue };
            let chat = listed.stored.iter().find(|stored| stored.connection.slot == Slot::Chat);
            let ready = chat.filter(|stored| stored.complete && stored.connection.state == SecretState::Ready);
            let reader = readers.entry((namespace.to_owned(), deployment.to_owned())).or_insert_with(|| Some(Vec::new()));
            match (ready, reader.as_mut()) {
                (Some(stored), Some(all)) => all.push(stored),
                // What is only being made cannot have been read yet.
                (None, _) if resource.state == ResourceState::Creating => {}
                (None, _) => *reader = None,
                (Some(_), None) => {}
            }
        }
        readers.into_iter().filter_map(|(place, all)| Some((place, digest(&all.filter(|all| !all.is_empty())?)))).collect()
    }

    fn is_restart_due(&self, place: &Place, digest: &str) -> bool {
        let memory = self.memory();
        let Some(known) = memory.restarts.get(place) else { return true };
        match known.state {
            Restart::UnderWay => false,
            Restart::Done => known.digest != digest,
            Restart::Failed => self.clock.now() >= after(known.at, self.config.backoff.max),
        }
    }

    fn note_restart(&self, place: &Place, digest: &str, state: Restart) {
        let known = Restarted { digest: digest.to_owned(), at: self.clock.now(), state };
        self.memory().restarts.insert(place.clone(), known);
    }

    fn begin_restart(&self, place: Place, digest: String) {
        self.note_restart(&place, &digest, Restart::UnderWay);
        let agent = self.clone();
        let span = tracing::info_span!("restart", namespace = place.0, deployment = place.1);
        let work = async move {
            let Ok(_worker) = agent.repairers.clone().acquire_owned().await else { return };
            let subject = format!("{}/{}", place.0, place.1);
            match agent.restart(&place, &digest).await {
                Ok(()) => {
                    agent.conditions.clear(NOT_RESTARTED, subject);
                    agent.note_restart(&place, &digest, Restart::Done);
                }
                Err(why) => {
                    let message = format!(
                        "Deployment {subject} was not restarted after its chat Secret changed: {why}. Its pods go on with what they read at their start; it is tried again"
                    );
                    agent.conditions.raise(NOT_RESTARTED, subject, message);
                    agent.note_restart(&place, &digest, Restart::Failed);
                }
            }
        };
        self.tasks.spawn(work.instrument(span));
    }

    /// Whether each Deployment that is to be restarted is there and may be. Changes nothing.
    pub(crate) async fn check_restarts(&self) -> Vec<Result<String, String>> {
        let (Some(api), Some(restart), SecretsConfig::Kubernetes { chat, .. }) =
            (self.secrets.deployments(), &self.config.restart, &self.config.secrets)
        else {
            return Vec::new();
        };
        let mut checked = Vec::new();
        for (namespace, name) in places(chat, restart) {
            let place = format!("Deployment {namespace}/{name}");
            let probed = match api.probe(&namespace, &name).await {
                Ok(()) => api.get(&namespace, &name).await,
                Err(error) => Err(error),
            };
            checked.push(match probed {
                Ok(Some(_)) => Ok(format!("{place} is there and may be restarted")),
                Ok(None) => Err(format!("{place} does not exist; correct secrets.restart, or make it")),
                Err(error) => Err(error.to_string()),
            });
        }
        checked
    }

    /// Looks at a Deployment, and has its pods replaced where they were started with other Secrets.
    async fn restart(&self, (namespace, name): &Place, digest: &str) -> Result<(), String> {
        let Some(api) = self.secrets.deployments() else { return Ok(()) };
        let found = api.get(namespace, name).await.map_err(|error| error.to_string())?;
        let found = found.ok_or("there is no such Deployment; correct secrets.restart, or make it")?;
        if found.annotations.get(SECRET_HASH).is_some_and(|there| there == digest) {
            return Ok(());
        }
        self.must_lead().map_err(|failure| failure.to_string())?;
        api.annotate(namespace, name, &found, SECRET_HASH, digest).await.map_err(|error| error.to_string())?;
        metrics::counter!("llm_access_actions_total", "action" => "restart-webui").increment(1);
        tracing::info!(action = "restart-webui", "restarted, since its chat Secret changed");
        let subject =
            Subject { api_version: "apps/v1", kind: "Deployment", namespace: namespace.clone(), name: name.clone(), uid: Some(found.uid) };
        self.secrets.events().done(subject, "SecretChanged", "Restart", "the chat Secret changed, so the pods are replaced");
        Ok(())
    }
}

/// Every Deployment that the configuration means, as far as it says where.
fn places(chat: &ChatNamespaces, restart: &RestartConfig) -> BTreeSet<Place> {
    let place = |namespace: &String, name: &String| (namespace.clone(), name.clone());
    match (chat, restart) {
        (ChatNamespaces::One(namespace), RestartConfig::One(name)) => BTreeSet::from([place(namespace, name)]),
        (ChatNamespaces::One(namespace), RestartConfig::PerProject(names)) => names.values().map(|name| place(namespace, name)).collect(),
        (ChatNamespaces::PerProject(namespaces), RestartConfig::One(name)) => {
            namespaces.values().map(|namespace| place(namespace, name)).collect()
        }
        (ChatNamespaces::PerProject(namespaces), RestartConfig::PerProject(names)) => {
            names.iter().filter_map(|(project, name)| Some(place(namespaces.get(project)?, name))).collect()
        }
    }
}

/// A digest of what pods read from these Secrets. It tells nothing about them: each holds a random key, and the digest is over
/// all of it and the Secret's uid.
fn digest(secrets: &[&Stored]) -> String {
    let mut parts: Vec<String> = secrets.iter().map(|stored| stored.digest()).collect();
    parts.sort();
    let digest = Sha256::digest(parts.join(" ").as_bytes());
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
