//! The time that every wait of the agent goes through, so that tests move it by hand.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

/// A source of time and of waits. Cheap to clone; all clones share one time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Manual(Arc<watch::Sender<Timestamp>>),
}

impl Clock {
    /// The machine's own time.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands still until [`Clock::advance`] or [`Clock::set`] moves it.
    #[must_use]
    pub fn manual(start: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(watch::Sender::new(start))))
    }

    /// The time now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's time")]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp::now(),
            Source::Manual(time) => *time.borrow(),
        }
    }

    /// Waits until `duration` has passed on this clock.
    #[expect(clippy::disallowed_methods, reason = "the one place that sleeps")]
    pub async fn sleep(&self, duration: Duration) {
        match &self.0 {
            Source::System => tokio::time::sleep(duration).await,
            Source::Manual(time) => {
                let until = after(*time.borrow(), duration);
                let mut seen = time.subscribe();
                // The sender lives in `self`, so waiting cannot fail before `self` is gone.
                let _ = seen.wait_for(|now| *now >= until).await;
            }
        }
    }

    /// Moves a manual clock forward and wakes whoever waited for that time. Does nothing on the machine's clock.
    pub fn advance(&self, duration: Duration) {
        if let Source::Manual(time) = &self.0 {
            time.send_modify(|now| *now = after(*now, duration));
        }
    }

    /// Sets a manual clock, also backwards. Does nothing on the machine's clock.
    pub fn set(&self, to: Timestamp) {
        if let Source::Manual(time) = &self.0 {
            time.send_replace(to);
        }
    }
}

/// `from` plus `duration`; the last representable time where that would overflow.
#[must_use]
pub fn after(from: Timestamp, duration: Duration) -> Timestamp {
    SignedDuration::try_from(duration).ok().and_then(|d| from.checked_add(d).ok()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_manual_clock_wakes_a_sleeper_only_when_its_time_has_come() {
        let clock = Clock::manual("2026-11-30T00:00:00Z".parse().unwrap());
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep(Duration::from_secs(10)).await }
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(9));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }
}
