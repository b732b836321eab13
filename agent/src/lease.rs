//! With more than one replica, only the holder of the Lease acts.

use std::sync::atomic::Ordering;

use llm_access_k8s::{Lease, LeaseSettings};

use crate::agent::{Agent, BuildError, kubernetes_api};

/// Takes part in the election that the configuration asks for. The agent acts only while it leads; `None` where no Lease is
/// configured, then it always acts.
///
/// # Errors
/// A Lease without a cluster to keep it in.
pub async fn elect(agent: &Agent) -> Result<Option<Lease>, BuildError> {
    let Some(config) = &agent.config.lease else { return Ok(None) };
    let api =
        kubernetes_api(&agent.config).await?.ok_or_else(|| BuildError::Secrets("a lease needs `secrets.store: kubernetes`".into()))?;
    let settings = LeaseSettings {
        duration: config.duration,
        retry: config.duration / 6,
        ..LeaseSettings::new(&config.namespace, &config.name, identity())
    };
    let lease = Lease::start(&api, settings).map_err(|error| BuildError::Secrets(error.to_string()))?;
    agent.leading.store(lease.is_leader(), Ordering::Release);
    let mut leading = lease.watch();
    let agent = agent.clone();
    tokio::spawn(async move {
        loop {
            let leads = *leading.borrow_and_update();
            agent.leading.store(leads, Ordering::Release);
            metrics::gauge!("llm_access_leading").set(if leads { 1.0 } else { 0.0 });
            tracing::info!(leads, "{}", if leads { "this replica leads" } else { "another replica leads, or none yet" });
            if leading.changed().await.is_err() {
                agent.leading.store(false, Ordering::Release);
                return;
            }
        }
    });
    Ok(Some(lease))
}

/// The pod's name where there is one, and something that no earlier process of the same name had.
fn identity() -> String {
    let mut bytes = [0_u8; 4];
    // Without random bytes the name alone must do: the Lease is still held by one at a time.
    let unique = getrandom::fill(&mut bytes).map(|()| u32::from_be_bytes(bytes)).unwrap_or(std::process::id());
    let name = std::env::var("HOSTNAME").unwrap_or_else(|_| "llm-access-agent".into());
    format!("{name}-{unique:08x}")
}
