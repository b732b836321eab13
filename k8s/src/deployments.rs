//! Deployments, as far as a restart of their pods goes: an annotation of the pod template, as `kubectl rollout restart` sets one.

use kube::api::{GetParams, Patch, PatchParams};
use kube::core::Request;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;

use crate::client::{Cluster, exchange};
use crate::error::{Call, Class, Error};
use crate::object::{is_dns_label, is_object_name};
use crate::{Result, Secrets};

/// Reads and restarts Deployments, through the client of [`Secrets`]. Cheap to clone.
#[derive(Clone)]
pub struct Deployments {
    cluster: Cluster,
}

impl std::fmt::Debug for Deployments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deployments").finish_non_exhaustive()
    }
}

/// A Deployment as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollout {
    /// Its uid.
    pub uid: String,
    /// The annotations of its pod template.
    pub annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Wire {
    metadata: Uid,
    spec: Spec,
}

#[derive(Deserialize)]
struct Uid {
    uid: String,
}

#[derive(Deserialize)]
struct Spec {
    template: Template,
}

#[derive(Deserialize)]
struct Template {
    #[serde(default)]
    metadata: Option<Annotations>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

impl Deployments {
    /// Nothing is called yet.
    #[must_use]
    pub fn new(secrets: &Secrets) -> Self {
        Self { cluster: secrets.cluster.clone() }
    }

    /// Reads one; `None` where there is none.
    ///
    /// # Errors
    /// Any class but `Conflict` and `NotFound`.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Option<Rollout>> {
        let call = self.on("get", namespace, name)?;
        let text = match exchange!(self.cluster, &call, collection(namespace).get(name, &GetParams::default())).await {
            Ok(text) => text,
            Err(error) if error.class() == Class::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let wire: Wire = serde_json::from_str(&text).map_err(|error| Error::not_understood(&call, error))?;
        let annotations = wire.spec.template.metadata.and_then(|metadata| metadata.annotations).unwrap_or_default();
        Ok(Some(Rollout { uid: wire.metadata.uid, annotations }))
    }

    /// Sets an annotation of the pod template, so that the pods are replaced, as the Deployment's own strategy says. The same
    /// value again changes nothing.
    ///
    /// # Errors
    /// `Conflict` when another Deployment has taken the name; `NotFound` when it is gone.
    pub async fn annotate(&self, namespace: &str, name: &str, of: &Rollout, key: &str, value: &str) -> Result<()> {
        let call = self.on("patch", namespace, name)?;
        let patch = json!({
            "metadata": {"uid": of.uid},
            "spec": {"template": {"metadata": {"annotations": {key: value}}}},
        });
        let params = PatchParams { field_manager: Some(self.cluster.field_manager.clone()), ..PatchParams::default() };
        exchange!(self.cluster, &call, collection(namespace).patch(name, &params, &Patch::Merge(&patch))).await.map(drop)
    }

    /// Proves, without changing anything, that we may restart this one.
    ///
    /// # Errors
    /// `Denied` naming the missing verb.
    pub async fn probe(&self, namespace: &str, name: &str) -> Result<()> {
        for verb in ["get", "patch"] {
            self.cluster.may(&self.on(verb, namespace, name)?, "apps").await?;
        }
        Ok(())
    }

    /// The call, once its path is known to be safe.
    fn on<'a>(&self, verb: &'static str, namespace: &'a str, name: &'a str) -> Result<Call<'a>> {
        let call = Call { verb, resource: "deployments", namespace, name };
        if is_dns_label(namespace) && is_object_name(name) {
            Ok(call)
        } else {
            Err(Error::invalid(&call, "namespace and name have to be legal"))
        }
    }
}

fn collection(namespace: &str) -> Request {
    Request::new(format!("/apis/apps/v1/namespaces/{namespace}/deployments"))
}
