//! With more than one replica, only the holder of the Lease acts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use llm_access_k8s::{Lease, LeaseSettings, Secrets};

use crate::agent::{Agent, BuildError, kubernetes_api};
use crate::config::Config;

/// The longest time between two looks at the Lease. A holder that stops gives the Lease back, so that this is how long its
/// successor takes to notice.
const LONGEST_LOOK: Duration = Duration::from_millis(2500);

/// How often a replica renews the Lease, or looks at somebody else's.
fn look_every(duration: Duration) -> Duration {
    (duration / 6).min(LONGEST_LOOK)
}

/// Takes part in the election that the configuration asks for. The agent acts only while it leads; `None` where no Lease is
/// configured, then it always acts.
///
/// # Errors
/// A Lease without a cluster to keep it in.
pub async fn elect(agent: &Agent) -> Result<Option<Lease>, BuildError> {
    let Some(config) = &agent.config.lease else { return Ok(None) };
    let api = cluster(&agent.config).await?;
    let settings = LeaseSettings {
        duration: config.duration,
        retry: look_every(config.duration),
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

/// Tries what the election needs, changing nothing. Says what it found; `None` where no Lease is configured.
///
/// # Errors
/// What is missing, and what to do about it.
pub async fn check(config: &Config) -> Result<Option<String>, String> {
    let Some(lease) = &config.lease else { return Ok(None) };
    let api = cluster(config).await.map_err(|error| error.to_string())?;
    Lease::probe(&api, &lease.namespace, &lease.name).await.map_err(|error| error.to_string())?;
    Ok(Some(format!("{}/{} may be read, made and renewed", lease.namespace, lease.name)))
}

async fn cluster(config: &Config) -> Result<Secrets, BuildError> {
    kubernetes_api(config).await?.ok_or_else(|| BuildError::Secrets("a lease needs `secrets.store: kubernetes`".into()))
}

/// The pod's name where there is one, and something that no earlier process of the same name had.
fn identity() -> String {
    let mut bytes = [0_u8; 4];
    // Without random bytes the name alone must do: the Lease is still held by one at a time.
    let unique = getrandom::fill(&mut bytes).map(|()| u32::from_be_bytes(bytes)).unwrap_or(std::process::id());
    let name = std::env::var("HOSTNAME").unwrap_or_else(|_| "llm-access-agent".into());
    format!("{name}-{unique:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_was_given_back_is_noticed_within_three_seconds_whatever_its_duration() {
        for seconds in [1, 5, 15, 60, 600] {
            let (duration, look) = (Duration::from_secs(seconds), look_every(Duration::from_secs(seconds)));
            assert!(look < Duration::from_secs(3) && look * 2 <= duration, "{duration:?}: {look:?}");
        }
    }
}
