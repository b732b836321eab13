//! Who is being worked on, and when a waiting order is due again. Only in memory: the peers hold everything that matters.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use jiff::Timestamp;
use uuid::Uuid;

use crate::clock::{Clock, after};
use crate::config::Backoff;

/// Waiting orders and busy resources.
#[derive(Debug)]
pub struct Schedule {
    clock: Clock,
    backoff: Backoff,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    busy: HashSet<Uuid>,
    waiting: HashMap<Uuid, Waiting>,
    tracked: HashMap<Uuid, Uuid>,
}

#[derive(Debug)]
struct Waiting {
    /// When it was put off.
    since: Timestamp,
    due: Timestamp,
    delays: ExponentialBackoff,
    refusals: u32,
    why: String,
    /// The right that is missing for it.
    right: Option<String>,
}

/// The right to work on one resource; it ends when dropped.
#[derive(Debug)]
pub struct Busy {
    schedule: Arc<Schedule>,
    resource: Uuid,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.schedule.lock().busy.remove(&self.resource);
    }
}

impl Schedule {
    /// An empty schedule.
    #[must_use]
    pub fn new(clock: Clock, backoff: Backoff) -> Arc<Self> {
        Arc::new(Self { clock, backoff, inner: Mutex::default() })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn delays(&self) -> ExponentialBackoff {
        ExponentialBuilder::default()
            .with_min_delay(self.backoff.initial)
            .with_max_delay(self.backoff.max)
            .without_max_times()
            .with_jitter()
            .build()
    }

    /// Takes the resource, unless somebody works on it.
    #[must_use]
    pub fn take(self: &Arc<Self>, resource: Uuid) -> Option<Busy> {
        let free = self.lock().busy.insert(resource);
        free.then(|| Busy { schedule: Arc::clone(self), resource })
    }

    /// Whether somebody works on the resource.
    #[must_use]
    pub fn is_busy(&self, resource: Uuid) -> bool {
        self.lock().busy.contains(&resource)
    }

    /// Whether an order may be worked on now. A clock that was set back to before the order was put off says nothing about
    /// how long it has waited: it is due, rather than later by as much as the clock was wrong.
    #[must_use]
    pub fn is_due(&self, order: Uuid) -> bool {
        let now = self.clock.now();
        self.lock().waiting.get(&order).is_none_or(|waiting| waiting.due <= now || now < waiting.since)
    }

    /// Puts an order off after a failure, longer each time, at least `at_least` (what the peer asked for, capped).
    /// `refused` counts refusals in a row. Returns the delay and that count.
    pub fn back_off(&self, order: Uuid, why: &str, at_least: Option<Duration>, refused: bool) -> (Duration, u32) {
        let now = self.clock.now();
        let max = self.backoff.max;
        let fresh = self.delays();
        let mut inner = self.lock();
        let waiting = inner.waiting.entry(order).or_insert_with(|| Waiting {
            since: now,
            due: now,
            delays: fresh,
            refusals: 0,
            why: String::new(),
            right: None,
        });
        let delay = waiting.delays.next().unwrap_or(max).max(at_least.unwrap_or_default()).min(max.saturating_mul(2));
        waiting.since = now;
        waiting.due = after(now, delay);
        why.clone_into(&mut waiting.why);
        waiting.refusals = if refused { waiting.refusals.saturating_add(1) } else { 0 };
        (delay, waiting.refusals)
    }

    /// How many refusals in a row an order has met.
    #[must_use]
    pub fn refusals(&self, order: Uuid) -> u32 {
        self.lock().waiting.get(&order).map_or(0, |waiting| waiting.refusals)
    }

    /// Puts an order off for want of a right, longer each time.
    pub fn forbid(&self, order: Uuid, right: &str, why: &str) -> Duration {
        let (delay, _) = self.back_off(order, why, None, false);
        if let Some(waiting) = self.lock().waiting.get_mut(&order) {
            waiting.right = Some(right.to_owned());
        }
        delay
    }

    /// The right that an order waits for.
    #[must_use]
    pub fn right(&self, order: Uuid) -> Option<String> {
        self.lock().waiting.get(&order).and_then(|waiting| waiting.right.clone())
    }

    /// Every right that something waits for.
    #[must_use]
    pub fn rights(&self) -> HashSet<String> {
        self.lock().waiting.values().filter_map(|waiting| waiting.right.clone()).collect()
    }

    /// A right is there again: everything that waited for it is due.
    pub fn allow(&self, right: &str) {
        self.lock().waiting.retain(|_, waiting| waiting.right.as_deref() != Some(right));
    }

    /// Puts an order off until a known time, without counting it as a failure.
    pub fn wait_until(&self, order: Uuid, until: Timestamp, why: &str) {
        let (since, delays) = (self.clock.now(), self.delays());
        self.lock().waiting.insert(order, Waiting { since, due: until, delays, refusals: 0, why: why.to_owned(), right: None });
    }

    /// An order is through, or gone: nothing about it is kept.
    pub fn forget(&self, order: Uuid) {
        let mut inner = self.lock();
        inner.waiting.remove(&order);
        inner.tracked.remove(&order);
    }

    /// Forgets what was put off for resources of which nothing is left to do; orders that were begun stay.
    pub fn forget_resources(&self, but: impl Fn(Uuid) -> bool) {
        let mut inner = self.lock();
        let Inner { waiting, tracked, .. } = &mut *inner;
        waiting.retain(|id, _| tracked.contains_key(id) || but(*id));
    }

    /// Remembers that an order was begun, so that its disappearance is noticed.
    pub fn track(&self, order: Uuid, resource: Uuid) {
        self.lock().tracked.insert(order, resource);
    }

    /// Orders that were begun and are not among `listed` any more, with their resources. They stay tracked until
    /// [`Schedule::forget`].
    #[must_use]
    pub fn vanished(&self, listed: &HashSet<Uuid>) -> Vec<(Uuid, Uuid)> {
        self.lock().tracked.iter().filter(|(order, _)| !listed.contains(order)).map(|(o, r)| (*o, *r)).collect()
    }

    /// Every waiting order with the time it is due and why it waits.
    #[must_use]
    pub fn waiting(&self) -> Vec<(Uuid, Timestamp, String)> {
        let mut rows: Vec<_> = self.lock().waiting.iter().map(|(order, w)| (*order, w.due, w.why.clone())).collect();
        rows.sort_by_key(|row| row.1);
        rows
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn a_resource_is_worked_on_by_one_at_a_time() {
        let backoff = Backoff { initial: Duration::from_secs(1), max: Duration::from_secs(60) };
        let schedule = Schedule::new(Clock::manual(Timestamp::UNIX_EPOCH), backoff);
        let [resource, other] = [1, 2].map(Uuid::from_u128);
        let busy = schedule.take(resource).unwrap();
        assert!(schedule.is_busy(resource) && !schedule.is_busy(other));
        // Not even to whoever asks again, and asking does not free it.
        assert!(schedule.take(resource).is_none() && schedule.take(resource).is_none());
        let beside = schedule.take(other).unwrap();
        drop(busy);
        assert!(!schedule.is_busy(resource) && schedule.is_busy(other));
        assert!(schedule.take(resource).is_some());
        drop(beside);
    }
}
