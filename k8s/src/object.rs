//! A Secret as it was read and as we want it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// What we want a Secret to hold. What others put into it besides stays.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The object's name (RFC 1123).
    pub name: String,
    /// Our labels.
    pub labels: BTreeMap<String, String>,
    /// Our annotations.
    pub annotations: BTreeMap<String, String>,
    /// Our variables, in clear; encoded when sent.
    pub data: BTreeMap<String, SecretString>,
}

impl Draft {
    /// Why this draft must not be sent, or nothing. The server would refuse most of it too, but an empty value it would take.
    pub(crate) fn fault(&self) -> Option<String> {
        if !is_dns_label(&self.name) {
            return Some(format!("{:?} is not a legal name", self.name));
        }
        if self.data.is_empty() {
            return Some("it has no variables".to_owned());
        }
        self.data.iter().find(|(_, value)| value.expose_secret().is_empty()).map(|(key, _)| format!("variable {key} is empty"))
    }

    pub(crate) fn to_json(&self, resource_version: Option<&str>) -> Value {
        let data: Map<String, Value> =
            self.data.iter().map(|(key, value)| (key.clone(), Value::String(STANDARD.encode(value.expose_secret())))).collect();
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name, "labels": self.labels, "annotations": self.annotations},
            "type": "Opaque",
            "data": data,
        });
        if let Some(version) = resource_version {
            object["metadata"]["resourceVersion"] = json!(version);
        }
        object
    }
}

/// A Secret as it was read.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: another Secret made later under the same name has another one.
    pub uid: String,
    /// The version that was read.
    pub resource_version: String,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// All labels, others' too.
    pub labels: BTreeMap<String, String>,
    /// All annotations, others' too.
    pub annotations: BTreeMap<String, String>,
    /// All values that are UTF-8, others' too.
    pub data: BTreeMap<String, SecretString>,
    /// The keys of `data` that our field manager wrote.
    pub owned: BTreeSet<String>,
    pub(crate) managers: Vec<Manager>,
}

/// An entry of `metadata.managedFields`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manager {
    pub(crate) name: String,
    pub(crate) data: BTreeSet<String>,
    pub(crate) labels: BTreeSet<String>,
    pub(crate) annotations: BTreeSet<String>,
}

/// Our keys that a draft no longer has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Leftover {
    data: Vec<String>,
    labels: Vec<String>,
    annotations: Vec<String>,
}

impl Leftover {
    pub(crate) fn is_empty(&self) -> bool {
        self.data.is_empty() && self.labels.is_empty() && self.annotations.is_empty()
    }

    /// The merge patch that takes them away, valid for this version only.
    pub(crate) fn removal(&self, uid: &str, resource_version: &str) -> Value {
        let nulls = |keys: &[String]| -> Value { keys.iter().map(|key| (key.clone(), Value::Null)).collect::<Map<_, _>>().into() };
        let mut metadata = json!({"uid": uid, "resourceVersion": resource_version});
        if !self.labels.is_empty() {
            metadata["labels"] = nulls(&self.labels);
        }
        if !self.annotations.is_empty() {
            metadata["annotations"] = nulls(&self.annotations);
        }
        let mut patch = json!({ "metadata": metadata });
        if !self.data.is_empty() {
            patch["data"] = nulls(&self.data);
        }
        patch
    }
}

impl Stored {
    /// Whether the draft is already there and nothing else of ours is.
    #[must_use]
    pub(crate) fn matches(&self, draft: &Draft, manager: &str) -> bool {
        contains(&self.labels, &draft.labels)
            && contains(&self.annotations, &draft.annotations)
            && draft
                .data
                .iter()
                .all(|(key, value)| self.data.get(key).is_some_and(|stored| stored.expose_secret() == value.expose_secret()))
            && self.leftover(draft, manager, &[]).is_empty()
    }

    /// Whether nobody but us ever wrote fields of this object.
    pub(crate) fn is_ours_alone(&self, manager: &str) -> bool {
        !self.managers.is_empty() && self.managers.iter().all(|entry| entry.name == manager)
    }

    /// What we once wrote, nobody else claims, and the draft no longer has. `before` are the managers at the time of an
    /// earlier reading: an apply gives up our claim on a dropped key that the first write still holds.
    pub(crate) fn leftover(&self, draft: &Draft, manager: &str, before: &[Manager]) -> Leftover {
        let pick =
            |keys: fn(&Manager) -> &BTreeSet<String>, present: &dyn Fn(&str) -> bool, wanted: &dyn Fn(&str) -> bool| -> Vec<String> {
                let ours: BTreeSet<&String> =
                    self.managers.iter().chain(before).filter(|entry| entry.name == manager).flat_map(keys).collect();
                ours.into_iter()
                    .filter(|key| present(key) && !wanted(key))
                    .filter(|key| !self.managers.iter().any(|entry| entry.name != manager && keys(entry).contains(*key)))
                    .cloned()
                    .collect()
            };
        Leftover {
            data: pick(|m| &m.data, &|k| self.data.contains_key(k), &|k| draft.data.contains_key(k)),
            labels: pick(|m| &m.labels, &|k| self.labels.contains_key(k), &|k| draft.labels.contains_key(k)),
            annotations: pick(|m| &m.annotations, &|k| self.annotations.contains_key(k), &|k| draft.annotations.contains_key(k)),
        }
    }
}

fn contains(all: &BTreeMap<String, String>, some: &BTreeMap<String, String>) -> bool {
    some.iter().all(|(key, value)| all.get(key) == Some(value))
}

/// Whether `name` may be a part of a path and the name of a namespace or Secret: RFC 1123, at most 63 characters.
pub(crate) fn is_dns_label(name: &str) -> bool {
    let bytes = name.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        && bytes.first() != Some(&b'-')
        && bytes.last() != Some(&b'-')
}

/// Whether `name` may be the name of an object: RFC 1123 labels joined by dots. A Secret of ours can have been
/// made under any legal name.
pub(crate) fn is_object_name(name: &str) -> bool {
    name.len() <= 253
        && !name.is_empty()
        && name.split('.').all(|part| !part.is_empty())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
}

// ---- the wire ----------------------------------------------------------------------------------------------

/// A Secret as the server sends it.
#[derive(Deserialize)]
pub(crate) struct Wire {
    metadata: Meta,
    #[serde(default)]
    data: Option<BTreeMap<String, Option<SecretString>>>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").field("name", &self.metadata.name).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
    #[serde(default)]
    creation_timestamp: Option<Timestamp>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    managed_fields: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    manager: String,
    #[serde(default)]
    fields_v1: Value,
}

/// A page of Secrets as the server sends it. The items are understood one after the other: what the server says besides about
/// each of them, most of all who owns which field, is far more than what is kept.
#[derive(Deserialize)]
pub(crate) struct Page<'a> {
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) metadata: PageMeta,
    #[serde(borrow)]
    pub(crate) items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
pub(crate) struct PageMeta {
    #[serde(default, rename = "continue")]
    pub(crate) next: Option<String>,
}

impl Wire {
    pub(crate) fn into_stored(self, manager: &str) -> Stored {
        let managers: Vec<Manager> = self
            .metadata
            .managed_fields
            .unwrap_or_default()
            .into_iter()
            .map(|entry| Manager {
                data: fields(entry.fields_v1.get("f:data")),
                labels: fields(entry.fields_v1.pointer("/f:metadata/f:labels")),
                annotations: fields(entry.fields_v1.pointer("/f:metadata/f:annotations")),
                name: entry.manager,
            })
            .collect();
        let data = self
            .data
            .unwrap_or_default()
            .into_iter()
            .filter_map(|(key, value)| {
                let bytes = Zeroizing::new(STANDARD.decode(value?.expose_secret()).ok()?);
                // Only others put binary values into our Secrets; one of our variables made binary counts as missing.
                let text = std::str::from_utf8(&bytes).ok()?;
                Some((key, SecretString::from(text)))
            })
            .collect();
        let owned = managers.iter().filter(|entry| entry.name == manager).flat_map(|entry| entry.data.iter().cloned()).collect();
        Stored {
            namespace: self.metadata.namespace,
            name: self.metadata.name,
            uid: self.metadata.uid,
            resource_version: self.metadata.resource_version,
            created: self.metadata.creation_timestamp,
            labels: self.metadata.labels.unwrap_or_default(),
            annotations: self.metadata.annotations.unwrap_or_default(),
            data,
            owned,
            managers,
        }
    }
}

/// The keys of a map in `fieldsV1`, where each is spelt `f:<key>` beside a `.` for the map itself.
fn fields(set: Option<&Value>) -> BTreeSet<String> {
    set.and_then(Value::as_object).into_iter().flatten().filter_map(|(key, _)| key.strip_prefix("f:")).map(str::to_owned).collect()
}
