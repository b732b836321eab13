//! Events, which tell an operator in the cluster's own place what happened to an object: `kubectl events`.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use kube::api::PostParams;
use kube::core::Request;
use serde_json::json;

use crate::client::{Cluster, exchange};
use crate::error::{Call, Error};
use crate::object::is_dns_label;
use crate::{Result, Secrets};

/// The most bytes of a note that the server takes (Kubernetes, validation of `events.k8s.io/v1`).
const LONGEST_NOTE: usize = 1024;

/// The object that an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    /// Its API version, as `v1`.
    pub api_version: &'static str,
    /// Its kind, as `Secret`.
    pub kind: &'static str,
    /// Its namespace, where the event is made too.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid, where it is known; `kubectl describe` shows only events that name it.
    pub uid: Option<String>,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// To what.
    pub subject: Subject,
    /// When.
    pub at: Timestamp,
    /// Whether somebody should look.
    pub warning: bool,
    /// Why, in one word in CamelCase.
    pub reason: String,
    /// What was done, in one word in CamelCase.
    pub action: &'static str,
    /// For people. What is too long is cut.
    pub note: String,
}

/// Makes events, through the client of [`Secrets`]. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    cluster: Cluster,
    instance: Arc<str>,
    made: Arc<AtomicU64>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl Events {
    /// `instance` is the name of this process among its replicas.
    #[must_use]
    pub fn new(secrets: &Secrets, instance: &str) -> Self {
        let instance = if instance.is_empty() { "llm-access-agent" } else { instance };
        Self {
            cluster: secrets.cluster.clone(),
            instance: instance.chars().take(63).collect::<String>().into(),
            made: Arc::new(RandomState::new().build_hasher().finish().into()),
        }
    }

    /// Makes an event.
    ///
    /// # Errors
    /// Any class; nothing depends on an event.
    pub async fn create(&self, event: &Event) -> Result<()> {
        let subject = &event.subject;
        let call = self.call("create", &subject.namespace)?;
        // Counted from a number of this process's own, so that no two events share a name, not even at the same time.
        let unique = self.made.fetch_add(1, Ordering::Relaxed);
        let start: String = subject.name.chars().take(200).collect();
        let name = format!("{}.{:x}.{unique:x}", start.trim_end_matches(['.', '-']), event.at.as_nanosecond());
        let object = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": subject.namespace},
            "eventTime": format!("{:.6}", event.at),
            "reportingController": "llm-access.io/agent",
            "reportingInstance": &*self.instance,
            "type": if event.warning { "Warning" } else { "Normal" },
            "reason": event.reason,
            "action": event.action,
            "note": cut(&event.note),
            "regarding": {
                "apiVersion": subject.api_version,
                "kind": subject.kind,
                "namespace": subject.namespace,
                "name": subject.name,
                "uid": subject.uid,
            },
        });
        let params = PostParams { field_manager: Some(self.cluster.field_manager.clone()), ..PostParams::default() };
        let body = object.to_string().into_bytes();
        exchange!(self.cluster, &call, collection(&subject.namespace).create(&params, body)).await.map(drop)
    }

    /// Proves, without making one, that events may be made in the namespace.
    ///
    /// # Errors
    /// `Denied` naming the missing verb.
    pub async fn probe(&self, namespace: &str) -> Result<()> {
        self.cluster.may(&self.call("create", namespace)?, "events.k8s.io").await
    }

    fn call<'a>(&self, verb: &'static str, namespace: &'a str) -> Result<Call<'a>> {
        let call = Call { verb, resource: "events", namespace, name: "" };
        if is_dns_label(namespace) { Ok(call) } else { Err(Error::invalid(&call, format!("{namespace:?} is not a legal namespace"))) }
    }
}

fn collection(namespace: &str) -> Request {
    Request::new(format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"))
}

/// The start of a note that the server takes.
fn cut(note: &str) -> &str {
    let mut end = note.len().min(LONGEST_NOTE);
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    &note[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_between_characters() {
        let note = "é".repeat(600);
        assert_eq!((cut(&note).len(), cut("short")), (1024, "short"));
        assert_eq!(cut(&format!("x{note}")).len(), 1023);
    }
}
