//! A closed gate spares a peer that is down, or that refuses our credential, one failing call per order.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

/// The three peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Waldur.
    Waldur,
    /// The LiteLLM gateway.
    Gateway,
    /// Where Secrets are kept.
    Secrets,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Waldur, Self::Gateway, Self::Secrets];

    /// Its name in messages and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waldur => "waldur",
            Self::Gateway => "gateway",
            Self::Secrets => "secrets",
        }
    }

    /// The condition that says it cannot be reached.
    #[must_use]
    pub fn unreachable(self) -> &'static str {
        match self {
            Self::Waldur => "waldur-unreachable",
            Self::Gateway => "gateway-unreachable",
            Self::Secrets => "secrets-unreachable",
        }
    }

    /// The condition that says it answers, but one call after another in vain.
    #[must_use]
    pub fn failing(self) -> &'static str {
        match self {
            Self::Waldur => "waldur-failing",
            Self::Gateway => "gateway-failing",
            Self::Secrets => "secrets-failing",
        }
    }

    /// The condition that says it refuses our credential or that rights are missing.
    #[must_use]
    pub fn refused(self) -> &'static str {
        match self {
            Self::Waldur => "waldur-credential",
            Self::Gateway => "gateway-credential",
            Self::Secrets => "secrets-denied",
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which peers are spared until a probe succeeds, and how often each failed in a row.
#[derive(Debug, Default)]
pub struct Gates {
    closed: Mutex<Vec<Peer>>,
    failures: Mutex<HashMap<Peer, u32>>,
}

impl Gates {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Peer>> {
        self.closed.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, HashMap<Peer, u32>> {
        self.failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Counts a failure; returns how many there were since the peer last did what was asked.
    pub fn count_failure(&self, peer: Peer) -> u32 {
        let mut failures = self.failures();
        let count = failures.entry(peer).or_default();
        *count = count.saturating_add(1);
        *count
    }

    /// Spares a peer from now on.
    pub fn close(&self, peer: Peer) {
        let mut closed = self.lock();
        if !closed.contains(&peer) {
            closed.push(peer);
        }
    }

    /// Lets work through again.
    pub fn open(&self, peer: Peer) {
        self.failures().remove(&peer);
        self.lock().retain(|p| *p != peer);
    }

    /// The peers being spared.
    #[must_use]
    pub fn closed(&self) -> Vec<Peer> {
        self.lock().clone()
    }
}
