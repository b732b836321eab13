//! One leader among several replicas, by a `coordination.k8s.io/v1` Lease.
//!
//! Every change of the Lease is a patch that carries the version it was read at, so two candidates cannot both take
//! it. Whether another holder is alive is judged by whether its Lease keeps changing while we watch, never by
//! comparing its clock with ours. The holder counts its own validity from the moment before its last renewal was
//! sent, and stops being the leader before anyone else may take over, even when the API server never answers again.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{GetParams, Patch, PatchParams, PostParams};
use kube::core::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::{Cluster, exchange};
use crate::error::{Call, Class, Error};
use crate::object::{is_dns_label, is_object_name};
use crate::{Result, Secrets};

/// Which Lease, and how quickly it passes on.
#[derive(Debug, Clone)]
pub struct LeaseSettings {
    /// The namespace of the Lease: the agent's own.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// Who we are among the replicas; the pod's name.
    pub identity: String,
    /// How long a silent holder keeps the Lease. Whole seconds, at least one.
    pub duration: Duration,
    /// The time between two renewals or two looks at somebody else's Lease; well below `duration`.
    pub retry: Duration,
}

impl LeaseSettings {
    /// The usual times: 15 s of silence, a look every 3 s.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            duration: Duration::from_secs(15),
            retry: Duration::from_secs(3),
        }
    }
}

/// A candidate for leadership. Runs in the background until [`Lease::release`] or drop; both give the Lease back.
#[derive(Debug)]
pub struct Lease {
    leading: watch::Receiver<bool>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
    within: Duration,
}

impl Lease {
    /// Starts to stand for leadership.
    ///
    /// # Errors
    /// `Invalid` for names or times that cannot work. An unreachable server is no error: we are not the leader then.
    pub fn start(secrets: &Secrets, settings: LeaseSettings) -> Result<Self> {
        let call = Call { verb: "get", resource: "leases", namespace: &settings.namespace, name: &settings.name };
        if !is_dns_label(&settings.namespace) || !is_object_name(&settings.name) || settings.identity.is_empty() {
            return Err(Error::invalid(&call, "namespace, name and identity must be legal and not empty"));
        }
        if settings.duration.as_secs() == 0 || settings.retry.is_zero() || settings.retry * 2 > settings.duration {
            return Err(Error::invalid(&call, "the duration must be at least one second and twice the retry time"));
        }
        let (sender, leading) = watch::channel(false);
        let (stop, stopped) = oneshot::channel();
        let within = secrets.cluster.timeout;
        let candidate = Candidate { cluster: secrets.cluster.clone(), settings, seen: None, valid_until: None, leading: sender };
        let task = tokio::spawn(candidate.run(stopped));
        Ok(Self { leading, stop: Some(stop), task, within })
    }

    /// Proves, without changing anything, that we may read, make and renew a Lease.
    ///
    /// # Errors
    /// `Denied` naming the missing verb.
    pub async fn probe(secrets: &Secrets, namespace: &str, name: &str) -> Result<()> {
        // A right to create cannot be limited by name.
        for (verb, name) in [("get", name), ("create", ""), ("patch", name)] {
            secrets.cluster.may(&Call { verb, resource: "leases", namespace, name }, "coordination.k8s.io").await?;
        }
        Ok(())
    }

    /// Whether we hold the Lease right now.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        *self.leading.borrow()
    }

    /// A channel that says when leadership comes and goes. Stop leader's work when it says false or closes.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.leading.clone()
    }

    /// Gives the Lease back, so that another replica takes over at once, and waits for that for at most one call's deadline.
    pub async fn release(mut self) {
        self.stop.take();
        // Two calls at most are under way: one attempt that is cut off, and the release.
        if tokio::time::timeout(self.within, &mut self.task).await.is_err() {
            tracing::warn!("the Lease was not given back in time; it runs out by itself");
        }
    }
}

struct Candidate {
    cluster: Cluster,
    settings: LeaseSettings,
    seen: Option<Seen>,
    valid_until: Option<Instant>,
    leading: watch::Sender<bool>,
}

/// What the Lease said when it last changed, and when we saw that.
struct Seen {
    lease: Wire,
    at: Instant,
}

#[derive(Deserialize, Clone, PartialEq)]
struct Wire {
    metadata: Meta,
    #[serde(default)]
    spec: Option<Spec>,
}

#[derive(Deserialize, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Meta {
    resource_version: String,
}

#[derive(Deserialize, Clone, PartialEq, Default)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    holder_identity: Option<String>,
    #[serde(default)]
    lease_duration_seconds: Option<u64>,
    #[serde(default)]
    lease_transitions: Option<u64>,
}

impl Candidate {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut said = String::new();
        loop {
            let deadline = self.valid_until;
            let outcome = tokio::select! {
                biased;
                _ = &mut stopped => break,
                () = until(deadline) => None,
                outcome = self.attempt() => Some(outcome),
            };
            match outcome {
                Some(Ok(valid_until)) => {
                    self.valid_until = valid_until;
                    said.clear();
                }
                // Said once, not at every look: what is wrong with a Lease is often wrong for hours.
                Some(Err(error)) if said == error.to_string() => tracing::debug!(%error, "the Lease is still not renewed or read"),
                Some(Err(error)) => {
                    said = error.to_string();
                    tracing::warn!(%error, "the Lease was not renewed or read; it is tried again");
                }
                None => {}
            }
            self.announce();
            let next = Instant::now() + self.settings.retry;
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                () = until(self.valid_until) => self.announce(),
                () = tokio::time::sleep_until(next) => {}
            }
        }
        let held = self.valid_until.is_some();
        self.leading.send_replace(false);
        if held && let Err(error) = self.give_back().await {
            tracing::warn!(%error, "the Lease was not given back; it runs out by itself");
        }
    }

    /// Says whether we lead, and forgets a validity that is over.
    fn announce(&mut self) {
        if self.valid_until.is_some_and(|until| until <= Instant::now()) {
            self.valid_until = None;
        }
        let leading = self.valid_until.is_some();
        self.leading.send_if_modified(|state| {
            let changed = *state != leading;
            *state = leading;
            changed
        });
    }

    /// Reads the Lease and takes or renews it where that is our right. Gives the end of our validity, or nothing when another holds it.
    async fn attempt(&mut self) -> Result<Option<Instant>> {
        let started = Instant::now();
        let Some(lease) = self.get().await? else {
            let mut spec = self.claim(0);
            spec["acquireTime"] = spec["renewTime"].clone();
            return match self.create(spec).await {
                Ok(()) => Ok(Some(self.validity(started))),
                Err(error) if error.class() == Class::Conflict => Ok(None),
                Err(error) => Err(error),
            };
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let mine = holder == self.settings.identity;
        if !self.seen.as_ref().is_some_and(|seen| seen.lease == lease) {
            self.seen = Some(Seen { lease: lease.clone(), at: Instant::now() });
        }
        if !mine && !holder.is_empty() {
            let silence = Duration::from_secs(spec.lease_duration_seconds.unwrap_or(0)).max(self.settings.duration);
            if self.seen.as_ref().is_none_or(|seen| seen.at.elapsed() < silence) {
                return Ok(None);
            }
        }
        let transitions = spec.lease_transitions.unwrap_or(0);
        let mut claim = self.claim(if mine { transitions } else { transitions.saturating_add(1) });
        if !mine {
            claim["acquireTime"] = claim["renewTime"].clone();
        }
        let renewal_started = Instant::now();
        match self.patch(&lease.metadata.resource_version, claim).await {
            Ok(()) => Ok(Some(self.validity(renewal_started))),
            Err(error) if error.class() == Class::Conflict => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Others wait for the full duration since they saw our renewal; we stop one retry time earlier.
    fn validity(&self, since: Instant) -> Instant {
        since + self.settings.duration.saturating_sub(self.settings.retry)
    }

    fn claim(&self, transitions: u64) -> Value {
        json!({
            "holderIdentity": self.settings.identity,
            "leaseDurationSeconds": self.settings.duration.as_secs(),
            "renewTime": format!("{:.6}", wall_clock()),
            "leaseTransitions": transitions,
        })
    }

    async fn give_back(&self) -> Result<()> {
        let Some(lease) = self.get().await? else {
            return Ok(());
        };
        if lease.spec.and_then(|spec| spec.holder_identity).as_deref() != Some(self.settings.identity.as_str()) {
            return Ok(());
        }
        self.patch(&lease.metadata.resource_version, json!({"holderIdentity": null})).await
    }

    fn call(&self, verb: &'static str) -> Call<'_> {
        Call { verb, resource: "leases", namespace: &self.settings.namespace, name: &self.settings.name }
    }

    fn collection(&self) -> Request {
        Request::new(format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.settings.namespace))
    }

    async fn get(&self) -> Result<Option<Wire>> {
        let call = self.call("get");
        let answer = exchange!(self.cluster, &call, self.collection().get(&self.settings.name, &GetParams::default())).await;
        match answer {
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| Error::not_understood(&call, error)),
            Err(error) if error.class() == Class::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, spec: Value) -> Result<()> {
        let params = PostParams { field_manager: Some(self.cluster.field_manager.clone()), ..PostParams::default() };
        let object = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.settings.name},
            "spec": spec,
        });
        let body = object.to_string().into_bytes();
        exchange!(self.cluster, &self.call("create"), self.collection().create(&params, body)).await.map(drop)
    }

    async fn patch(&self, resource_version: &str, spec: Value) -> Result<()> {
        let params = PatchParams { field_manager: Some(self.cluster.field_manager.clone()), ..PatchParams::default() };
        let patch = json!({"metadata": {"resourceVersion": resource_version}, "spec": spec});
        exchange!(self.cluster, &self.call("patch"), self.collection().patch(&self.settings.name, &params, &Patch::Merge(&patch)))
            .await
            .map(drop)
    }
}

/// The time that others read in the Lease. Nothing here is decided by it.
#[expect(clippy::disallowed_methods, reason = "a Lease shows the wall clock, whatever a test's clock says")]
fn wall_clock() -> Timestamp {
    Timestamp::now()
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
