//! Probes, metrics and the agent's own view of itself, over HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::clock::{Clock, after};
use crate::features::Feature;

/// When each loop last ended a beat.
#[derive(Debug)]
pub struct Progress {
    clock: Clock,
    beats: Mutex<BTreeMap<&'static str, Pass>>,
}

/// How far one loop is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// When it last ended a beat; when it began, before the first.
    pub last: Timestamp,
    /// How often it is to.
    pub interval: Duration,
    /// What came of its last pass; empty before the first.
    pub outcome: String,
}

impl Progress {
    /// No loop is expected yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, beats: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Pass>> {
        self.beats.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// From now on `which` is to end a beat every `interval`.
    pub fn expect(&self, which: &'static str, interval: Duration) {
        self.lock().insert(which, Pass { last: self.clock.now(), interval, outcome: String::new() });
    }

    /// A beat of `which` ended. Only the loop itself may say so: a ticker beside it would hide that it hangs.
    pub fn beat(&self, which: &'static str) {
        self.end(which, None);
    }

    /// A pass of `which` ended, and this came of it.
    pub fn ended(&self, which: &'static str, outcome: String) {
        self.end(which, Some(outcome));
    }

    fn end(&self, which: &'static str, outcome: Option<String>) {
        let now = self.clock.now();
        if let Some(pass) = self.lock().get_mut(which) {
            pass.last = now;
            if let Some(outcome) = outcome {
                pass.outcome = outcome;
            }
        }
        metrics::gauge!("llm_access_last_beat_timestamp_seconds", "loop" => which).set(seconds(now));
    }

    /// Loops that have ended no beat for ten intervals, and for at least ten minutes (a beat may take a few time-outs).
    #[must_use]
    pub fn stuck(&self) -> Vec<(&'static str, Timestamp)> {
        let now = self.clock.now();
        let patience = |interval: Duration| (interval * 10).max(Duration::from_secs(600));
        self.lock()
            .iter()
            .filter(|(_, pass)| now > after(pass.last, patience(pass.interval)))
            .map(|(which, pass)| (*which, pass.last))
            .collect()
    }

    /// The last beat of each loop.
    #[must_use]
    pub fn last(&self) -> Vec<(&'static str, Timestamp)> {
        self.lock().iter().map(|(which, pass)| (*which, pass.last)).collect()
    }

    /// Every loop and how far it is.
    #[must_use]
    pub fn passes(&self) -> BTreeMap<&'static str, Pass> {
        self.lock().clone()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float; a second is exact for 285 million years")]
pub(crate) fn seconds(at: Timestamp) -> f64 {
    at.as_second() as f64
}

/// What probes and Prometheus ask for: `/livez`, `/readyz`, `/status`, `/metrics`.
pub fn router(agent: Agent, metrics: Option<PrometheusHandle>) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(|| async { "ready\n" }))
        .route("/status", get(|State(agent): State<Agent>| async move { Json(status(&agent)) }))
        .route("/metrics", get(move || async move { metrics.as_ref().map(PrometheusHandle::render).unwrap_or_default() }))
        .with_state(agent)
}

async fn livez(State(agent): State<Agent>) -> impl IntoResponse {
    let stuck = agent.progress.stuck();
    if stuck.is_empty() {
        return (StatusCode::OK, "alive\n".to_owned());
    }
    let lines: String = stuck.iter().map(|(which, since)| format!("loop {which} has ended no beat since {since}\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines)
}

/// What the agent knows of itself.
#[must_use]
pub fn status(agent: &Agent) -> Value {
    let conditions: Vec<Value> = agent
        .conditions
        .all()
        .into_iter()
        .map(|(name, subject, condition)| json!({"name": name, "subject": subject, "since": condition.since, "message": condition.message}))
        .collect();
    let waiting: Vec<Value> = agent
        .schedule
        .waiting()
        .into_iter()
        .take(200)
        .map(|(id, due, why)| json!({"id": id.simple().to_string(), "due": due, "why": why}))
        .collect();
    let features: BTreeMap<&str, Option<bool>> =
        Feature::ALL.into_iter().map(|feature| (feature.as_str(), agent.features.known(feature))).collect();
    json!({
        "owner": agent.config.owner,
        "version": env!("CARGO_PKG_VERSION"),
        "loops": agent.progress.passes().into_iter().map(|(which, pass)| json!({"loop": which, "last_beat": pass.last, "outcome": pass.outcome})).collect::<Vec<_>>(),
        "conditions": conditions,
        "waiting": waiting,
        "features": features,
        "in_flight": agent.tasks.len(),
    })
}

/// Serves the pages on `listen` until the process ends. Says where it listens.
///
/// # Errors
/// An address that cannot be listened on.
pub async fn serve(listen: SocketAddr, agent: Agent, metrics: Option<PrometheusHandle>) -> std::io::Result<SocketAddr> {
    let address = listen_on(listen, router(agent, metrics), "for probes and metrics").await?;
    tracing::info!("listening on {address}");
    Ok(address)
}

/// Serves `router` until the process ends, and gives the address, which has a port even where `listen` leaves it open. `what`
/// the listener is there for follows its name in the log.
///
/// # Errors
/// An address that cannot be listened on.
pub(crate) async fn listen_on(listen: SocketAddr, router: Router, what: &'static str) -> std::io::Result<SocketAddr> {
    let listener = tokio::net::TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!("the listener {what} ended: {error}");
        }
    });
    Ok(address)
}
