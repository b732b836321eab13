//! Secrets in the namespaces of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::try_join_all;
use llm_access_k8s::{Deployments, Error, Secrets, Subject};
use uuid::Uuid;

use super::{
    AGENT, ALIAS, Connection, Created, Draft, Later, Listed, MANAGED_BY, OWNER, RESOURCE, Read, Record, Slot, StoreError, Version,
    owner_label,
};
use crate::config::ChatNamespaces;
use crate::events::Events;

/// Which Secrets go where. Namespaces come from the configuration alone, never from a name that a customer chose.
#[derive(Debug, Clone)]
pub struct Namespaces {
    /// For Open WebUI.
    pub chat: ChatNamespaces,
    /// For the keys of projects.
    pub keys: String,
}

impl Namespaces {
    fn all(&self) -> BTreeSet<&str> {
        let chat: Vec<&str> = match &self.chat {
            ChatNamespaces::One(namespace) => vec![namespace],
            ChatNamespaces::PerProject(map) => map.values().map(String::as_str).collect(),
        };
        chat.into_iter().chain([self.keys.as_str()]).collect()
    }

    fn chat(&self, project: Option<Uuid>) -> Option<&str> {
        match &self.chat {
            ChatNamespaces::One(namespace) => Some(namespace),
            ChatNamespaces::PerProject(map) => map.get(&project?).map(String::as_str),
        }
    }
}

/// The Secrets of one owner in a cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Kubernetes {
    api: Secrets,
    owner: String,
    namespaces: Namespaces,
    events: Events,
}

impl Kubernetes {
    /// Over a client that is connected already.
    #[must_use]
    pub fn new(api: Secrets, owner: &str, namespaces: Namespaces) -> Self {
        Self { api, owner: owner.to_owned(), namespaces, events: Events::off() }
    }

    /// With events about the Secrets.
    #[must_use]
    pub fn telling(self, events: Events) -> Self {
        Self { events, ..self }
    }

    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    pub(super) async fn check_events(&self) -> Option<Result<String, StoreError>> {
        let namespaces: Vec<&str> = self.namespaces.all().into_iter().collect();
        Some(self.events.check(&namespaces).await?.map_err(StoreError::from))
    }

    pub(super) fn deployments(&self) -> Deployments {
        Deployments::new(&self.api)
    }

    pub(super) fn chat_namespace(&self, project: Option<Uuid>) -> Option<&str> {
        self.namespaces.chat(project)
    }

    pub(super) fn tell_foreign(&self, slot: Slot, project: Option<Uuid>, name: &str, why: &str) {
        let namespace = match slot {
            Slot::Project => Some(self.namespaces.keys.as_str()),
            Slot::Chat => self.namespaces.chat(project),
        };
        if let Some(namespace) = namespace {
            self.events.in_the_way(secret(namespace, name, None), "NotOurs", "Create", why);
        }
    }

    /// The namespaces that hold Secrets of ours.
    pub(super) fn namespaces(&self) -> BTreeSet<&str> {
        self.namespaces.all()
    }

    /// All Secrets of one of them.
    pub(super) async fn all_in(&self, namespace: &str) -> Result<Vec<Read>, StoreError> {
        self.list(namespace, None).await
    }

    pub(super) async fn of_resource(&self, resource: Uuid, project: Option<Uuid>) -> Result<Listed, StoreError> {
        // A project that lost its namespace in the configuration may still have a Secret in any of them.
        let places = match self.namespaces.chat(project) {
            Some(chat) => BTreeSet::from([chat, self.namespaces.keys.as_str()]),
            None => self.namespaces.all(),
        };
        let lists = places.into_iter().map(|namespace| self.list(namespace, Some(resource)));
        Ok(try_join_all(lists).await?.into_iter().flatten().collect())
    }

    async fn list(&self, namespace: &str, resource: Option<Uuid>) -> Result<Vec<Read>, StoreError> {
        let mut selector = BTreeMap::from([(MANAGED_BY.to_owned(), AGENT.to_owned()), (OWNER.to_owned(), owner_label(&self.owner))]);
        if let Some(resource) = resource {
            selector.insert(RESOURCE.to_owned(), resource.simple().to_string());
        }
        let read = |stored: llm_access_k8s::Stored| {
            let version = match resource {
                Some(_) => Version::Kubernetes(Box::new(stored.clone())),
                None => Version::Unkept { uid: stored.uid },
            };
            let record = Record {
                name: stored.name,
                labels: stored.labels,
                annotations: stored.annotations,
                data: stored.data,
                owned: stored.owned,
                created: stored.created,
                version,
            };
            record.read(&self.owner)
        };
        Ok(self.api.list_as(namespace, &selector, read).await?)
    }

    pub(super) async fn create(&self, connection: &Connection) -> Result<Created, StoreError> {
        let namespace = match connection.slot {
            Slot::Project => &self.namespaces.keys,
            Slot::Chat => self.namespaces.chat(connection.project).ok_or_else(|| {
                let project = connection
                    .project
                    .map_or_else(|| "a resource without a project".to_owned(), |project| format!("project {}", project.simple()));
                StoreError::Denied {
                    object: format!("Secret {}", connection.name),
                    why: format!("no namespace is configured for {project}"),
                    cure: "add the project to secrets.chat_namespace".to_owned(),
                }
            })?,
        };
        match self.api.create(namespace, &self.draft(connection, &Later::default())).await? {
            llm_access_k8s::Created::Made => {
                let note = format!("key {} is stored; it is registered at the gateway next", connection.alias);
                self.events.done(secret(namespace, &connection.name, None), "KeyStored", "Create", &note);
                Ok(Created::Made)
            }
            llm_access_k8s::Created::Exists => Ok(Created::Exists),
        }
    }

    pub(super) async fn apply(&self, connection: &Connection, later: &Later, base: &llm_access_k8s::Stored) -> Result<(), StoreError> {
        let written = self.api.apply(base, &self.draft(connection, later)).await.map_err(StoreError::from);
        match &written {
            Ok(()) => self.tell_replaced(connection, base),
            Err(taken @ StoreError::Taken { .. }) => {
                let secret = secret(&base.namespace, &base.name, Some(&base.uid));
                self.events.in_the_way(secret, "FieldsTaken", "Apply", &taken.to_string());
            }
            Err(_) => {}
        }
        written
    }

    pub(super) async fn overwrite(&self, connection: &Connection, base: &llm_access_k8s::Stored) -> Result<(), StoreError> {
        self.api.overwrite(base, &self.draft(connection, &Later::default())).await?;
        self.tell_replaced(connection, base);
        Ok(())
    }

    fn tell_replaced(&self, connection: &Connection, base: &llm_access_k8s::Stored) {
        let old = base.annotations.get(ALIAS).map(String::as_str).unwrap_or_default();
        if old != connection.alias {
            let note =
                format!("key {} takes the place of {}", connection.alias, if old.is_empty() { "one that is not known" } else { old });
            self.events.done(secret(&base.namespace, &base.name, Some(&base.uid)), "KeyReplaced", "Apply", &note);
        }
    }

    pub(super) async fn delete(&self, base: &llm_access_k8s::Stored) -> Result<(), StoreError> {
        Ok(self.api.delete(base).await?)
    }

    pub(super) async fn check(&self) -> Result<String, StoreError> {
        let namespaces = self.namespaces.all();
        for namespace in &namespaces {
            self.api.probe(namespace).await?;
        }
        let mut secrets = 0;
        for namespace in &namespaces {
            secrets += self.all_in(namespace).await?.len();
        }
        Ok(format!(
            "{secrets} Secrets of {} in {}; list, create, patch and delete are allowed",
            self.owner,
            namespaces.into_iter().collect::<Vec<_>>().join(", ")
        ))
    }

    fn draft(&self, connection: &Connection, later: &Later) -> llm_access_k8s::Draft {
        let draft = Draft::new(connection, later, &self.owner);
        llm_access_k8s::Draft { name: connection.name.clone(), labels: draft.labels, annotations: draft.annotations, data: draft.data }
    }
}

fn secret(namespace: &str, name: &str, uid: Option<&str>) -> Subject {
    Subject { api_version: "v1", kind: "Secret", namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.map(str::to_owned) }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match error {
            Error::Transient { what, why, retry_after, .. } => Self::Transient { object: what, why, retry_after },
            Error::Denied { what, why, remedy } => Self::Denied { object: what, why, cure: remedy },
            Error::NotFound { what, namespace, why } => Self::Denied {
                object: what,
                why,
                cure: format!("create namespace {namespace}, or correct secrets.chat_namespace or secrets.key_namespace"),
            },
            Error::Settings { why } => Self::Denied {
                object: "the Kubernetes API".to_owned(),
                why,
                cure: "set secrets.kubeconfig and secrets.context, or run in a pod with a service account".to_owned(),
            },
            Error::Conflict { what, why, managers } => {
                if managers.is_empty() {
                    return Self::Conflict { object: what, why: format!("{why}; it is read again") };
                }
                Self::Taken {
                    object: what,
                    why,
                    cure: format!(
                        "undo the change made by {}, or delete the Secret: the agent then makes it anew with a new key",
                        managers.join(", ")
                    ),
                }
            }
            Error::Invalid { what, why } => Self::Invalid { object: what, why },
        }
    }
}
