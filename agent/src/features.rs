//! What each peer can do, learnt from its first answer: server generations differ, and version strings are not to be had.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{Clock, after};

/// An optional ability of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// Waldur shows endpoints of a resource.
    Endpoints,
    /// Waldur keeps API keys of a resource.
    ApiKeys,
    /// Waldur lets a provider set an erred resource to OK.
    SetOk,
    /// Waldur retries an erred order.
    Retry,
    /// Waldur keeps the time of the last look at a resource; servers with it also date usage.
    LastSync,
    /// Waldur files usage under the month of the date it is given: proven by reading back, never by acceptance.
    DatedUsage,
    /// Waldur takes usage of earlier plans of a month off what it is told.
    PlanSplit,
    /// Waldur keeps usage by API key.
    KeyUsage,
    /// The gateway takes key values that the agent chose.
    CustomKeys,
}

impl Feature {
    /// All of them, for `check`.
    pub const ALL: [Self; 9] = [
        Self::Endpoints,
        Self::ApiKeys,
        Self::SetOk,
        Self::Retry,
        Self::LastSync,
        Self::DatedUsage,
        Self::PlanSplit,
        Self::KeyUsage,
        Self::CustomKeys,
    ];

    /// Its name in messages and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Endpoints => "waldur-endpoints",
            Self::ApiKeys => "waldur-api-keys",
            Self::SetOk => "waldur-set-ok",
            Self::Retry => "waldur-order-retry",
            Self::LastSync => "waldur-last-sync",
            Self::DatedUsage => "waldur-dated-usage",
            Self::PlanSplit => "waldur-plan-split",
            Self::KeyUsage => "waldur-key-usage",
            Self::CustomKeys => "gateway-custom-keys",
        }
    }
}

/// A "no" is asked again after this long: servers get upgraded.
const ASK_AGAIN: Duration = Duration::from_secs(3600);

/// What was learnt, for the life of the process.
#[derive(Debug)]
pub struct Features {
    clock: Clock,
    known: Mutex<BTreeMap<Feature, (bool, Timestamp)>>,
}

impl Features {
    /// Nothing learnt yet.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { clock, known: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Feature, (bool, Timestamp)>> {
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether to try: yes until the peer said no, and again an hour after.
    #[must_use]
    pub fn worth_trying(&self, feature: Feature) -> bool {
        match self.lock().get(&feature) {
            Some((false, since)) => self.clock.now() >= after(*since, ASK_AGAIN),
            _ => true,
        }
    }

    /// Forgets a "no" that is old enough to be asked again; whether it did.
    pub fn forget_old_no(&self, feature: Feature) -> bool {
        let old = self.known(feature) == Some(false) && self.worth_trying(feature);
        if old {
            self.lock().remove(&feature);
        }
        old
    }

    /// Keeps an answer. Returns whether it was news.
    pub fn learn(&self, feature: Feature, works: bool) -> bool {
        let before = self.lock().insert(feature, (works, self.clock.now()));
        before.map(|(worked, _)| worked) != Some(works)
    }

    /// What is known.
    #[must_use]
    pub fn known(&self, feature: Feature) -> Option<bool> {
        self.lock().get(&feature).map(|(works, _)| *works)
    }
}
