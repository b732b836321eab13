//! Kubernetes Events: what happened to the Secrets, and what is wrong with the agent, where an operator of the cluster looks.
//!
//! An event is news, not a record: it is made once for a change, never for a beat, and it may be lost. Nothing waits for it
//! and nothing depends on it; a right that is missing is said once. What is true now is in `/status`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use llm_access_k8s::{Class, Event, Subject};
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::visible::visible_start;

/// How many events about one thing for one reason may follow at once, and how soon another may.
const BURST: u32 = 5;
const REFILL: Duration = Duration::from_secs(120);
/// The same for what is met with every attempt. Clusters forget events after an hour, so that it can still be seen.
const REMIND: Duration = Duration::from_secs(3600);
/// The same for all together.
const BURST_OF_ALL: u32 = 100;
const REFILL_OF_ALL: Duration = Duration::from_secs(1);
/// The most things and reasons that are told apart; more than that in flight, and the oldest counts are forgotten.
const MOST_KINDS: usize = 1000;
/// The most characters of a note; the server takes 1024 bytes.
const LONGEST_NOTE: usize = 1000;

/// Where events are made; nowhere, unless they are turned on. Cheap to clone, and all clones are one.
#[derive(Clone, Debug, Default)]
pub struct Events(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    api: llm_access_k8s::Events,
    /// The agent's own pod, where it is known.
    pod: Option<Subject>,
    clock: Clock,
    sending: TaskTracker,
    buckets: Mutex<HashMap<(String, String), Bucket>>,
    muted: AtomicBool,
    follows_conditions: AtomicBool,
    denied: AtomicBool,
}

/// Events that may still be made before time has to pass.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u32,
    since: Timestamp,
}

impl Bucket {
    /// Takes one, after what time has brought back.
    fn take(&mut self, now: Timestamp, burst: u32, refill: Duration) -> bool {
        let passed = u128::try_from(now.duration_since(self.since).as_millis()).unwrap_or(0) / refill.as_millis().max(1);
        if passed > 0 {
            self.left = self.left.saturating_add(u32::try_from(passed).unwrap_or(u32::MAX)).min(burst);
            self.since = now;
        }
        let taken = self.left > 0;
        self.left = self.left.saturating_sub(1);
        taken
    }
}

impl Events {
    /// None are made.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// They are made through `api`; those about the agent itself at its `pod`.
    #[must_use]
    pub fn new(api: llm_access_k8s::Events, pod: Option<Subject>, clock: Clock) -> Self {
        Self(Some(Arc::new(Inner {
            api,
            pod,
            clock,
            sending: TaskTracker::new(),
            buckets: Mutex::default(),
            muted: AtomicBool::new(false),
            follows_conditions: AtomicBool::new(false),
            denied: AtomicBool::new(false),
        })))
    }

    /// None are made from now on: a command that only looks changes nothing anywhere.
    pub fn mute(&self) {
        if let Some(inner) = &self.0 {
            inner.muted.store(true, Ordering::Relaxed);
        }
    }

    /// From now on the conditions of this process are told. A command that comes and goes would only repeat those of the
    /// running agent.
    pub fn follow_conditions(&self) {
        if let Some(inner) = &self.0 {
            inner.follows_conditions.store(true, Ordering::Relaxed);
        }
    }

    /// A condition began to hold.
    pub(crate) fn condition_raised(&self, name: &str, message: &str) {
        self.about_the_agent(name, true, "Raise", message);
    }

    /// A condition no longer holds for anything.
    pub(crate) fn condition_cleared(&self, name: &str, message: &str) {
        self.about_the_agent(name, false, "Clear", &format!("no longer: {message}"));
    }

    fn about_the_agent(&self, name: &str, warning: bool, action: &'static str, note: &str) {
        let Some(inner) = self.0.as_ref().filter(|inner| inner.follows_conditions.load(Ordering::Relaxed)) else { return };
        let Some(pod) = inner.pod.clone() else { return };
        inner.tell(pod, warning, camel(name), action, note, (BURST, REFILL));
    }

    /// Something was done to an object.
    pub(crate) fn done(&self, subject: Subject, reason: &str, action: &'static str, note: &str) {
        if let Some(inner) = &self.0 {
            inner.tell(subject, false, reason.to_owned(), action, note, (BURST, REFILL));
        }
    }

    /// Something stands in the way, at every attempt.
    pub(crate) fn in_the_way(&self, subject: Subject, reason: &str, action: &'static str, note: &str) {
        if let Some(inner) = &self.0 {
            inner.tell(subject, true, reason.to_owned(), action, note, (1, REMIND));
        }
    }

    /// Waits until what is under way was sent or has failed, which the time-out of calls bounds.
    pub async fn flush(&self) {
        if let Some(inner) = &self.0 {
            inner.sending.close();
            inner.sending.wait().await;
            inner.sending.reopen();
        }
    }

    /// Whether events may be made in these namespaces and, where it is known, in that of the agent's pod; `None` where they
    /// are off.
    ///
    /// # Errors
    /// What is missing, and what to do about it.
    pub async fn check(&self, namespaces: &[&str]) -> Option<Result<String, llm_access_k8s::Error>> {
        let inner = self.0.as_ref()?;
        let mut all: Vec<&str> = namespaces.to_vec();
        all.extend(inner.pod.as_ref().map(|pod| pod.namespace.as_str()));
        all.sort_unstable();
        all.dedup();
        for namespace in &all {
            if let Err(error) = inner.api.probe(namespace).await {
                return Some(Err(error));
            }
        }
        Some(Ok(format!("may be made in {}", all.join(", "))))
    }
}

impl Inner {
    fn tell(
        self: &Arc<Self>,
        subject: Subject,
        warning: bool,
        reason: String,
        action: &'static str,
        note: &str,
        (burst, refill): (u32, Duration),
    ) {
        let at = self.clock.now();
        if self.muted.load(Ordering::Relaxed) || !self.may_tell(&subject, &reason, at, burst, refill) {
            return;
        }
        let event = Event { subject, at, warning, reason, action, note: visible_start(note, LONGEST_NOTE) };
        let inner = Arc::clone(self);
        self.sending.spawn(async move {
            match inner.api.create(&event).await {
                Ok(()) => inner.denied.store(false, Ordering::Relaxed),
                Err(error) if error.class() == Class::Denied && inner.denied.swap(true, Ordering::Relaxed) => {}
                Err(error) => tracing::debug!("an event is lost: {error}"),
            }
        });
    }

    fn may_tell(&self, subject: &Subject, reason: &str, now: Timestamp, burst: u32, refill: Duration) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST_KINDS {
            buckets.clear();
        }
        let mut take = |key: (String, String), burst, refill| {
            buckets.entry(key).or_insert(Bucket { left: burst, since: now }).take(now, burst, refill)
        };
        take((format!("{}/{}/{}", subject.kind, subject.namespace, subject.name), reason.to_owned()), burst, refill)
            && take((String::new(), String::new()), BURST_OF_ALL, REFILL_OF_ALL)
    }
}

/// `lost-sight` as `LostSight`, the way reasons of events are written.
fn camel(name: &str) -> String {
    name.split('-')
        .map(|word| {
            let mut letters = word.chars();
            letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_in_camel_case() {
        assert_eq!(camel("lost-sight"), "LostSight");
        assert_eq!(camel("unbilled"), "Unbilled");
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_one_for_each_time() {
        let start = Timestamp::UNIX_EPOCH;
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut bucket = Bucket { left: 2, since: start };
        let mut take = |seconds: u64| bucket.take(after(seconds), 2, Duration::from_secs(60));
        assert_eq!([take(0), take(1), take(2), take(59)], [true, true, false, false]);
        assert_eq!([take(60), take(61)], [true, false]);
        assert_eq!([take(100_000), take(100_000), take(100_000)], [true, true, false], "never more than its burst");
        assert!(!take(5), "a clock that was set back brings nothing");
    }
}
