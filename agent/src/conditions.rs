//! What is wrong right now, said once per change: in the log, in `/status` and as a metric.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::clock::Clock;
use crate::events::Events;

/// One thing that is wrong, or was noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// Since when.
    pub since: Timestamp,
    /// The object, the cause and the cure.
    pub message: String,
    /// What was logged while it holds, so that two causes that take turns are not logged for ever.
    #[serde(skip)]
    told: Vec<String>,
}

/// A condition with more messages than this logs the oldest of them again.
const MOST_TOLD: usize = 16;

/// The conditions that hold, by name (and subject, where a name can hold for several objects).
#[derive(Debug)]
pub struct Conditions {
    clock: Clock,
    events: Events,
    held: Mutex<BTreeMap<(&'static str, String), Condition>>,
}

/// More subjects of one name than this are counted, not kept: customers could otherwise fill the memory.
const MOST_SUBJECTS: usize = 200;

impl Conditions {
    /// None holds. That one begins or ends to hold for anything is told to `events`.
    #[must_use]
    pub fn new(clock: Clock, events: Events) -> Self {
        Self { clock, events, held: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(&'static str, String), Condition>> {
        self.held.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Raises a condition; a log line is written only for a message that was not logged since it began.
    pub fn raise(&self, name: &'static str, subject: impl ToString, message: impl ToString) {
        let (key, message) = ((name, subject.to_string()), message.to_string());
        let mut held = self.lock();
        let mut first = false;
        if let Some(condition) = held.get_mut(&key) {
            if condition.message == message {
                return;
            }
            condition.message.clone_from(&message);
            if condition.told.contains(&message) {
                return;
            }
            if condition.told.len() >= MOST_TOLD {
                condition.told.remove(0);
            }
            condition.told.push(message.clone());
        } else {
            let others = held.keys().filter(|(n, _)| *n == name).count();
            if others >= MOST_SUBJECTS {
                return;
            }
            first = others == 0;
            held.insert(key.clone(), Condition { since: self.clock.now(), message: message.clone(), told: vec![message.clone()] });
        }
        drop(held);
        metrics::gauge!("llm_access_condition", "condition" => name).set(1.0);
        if first {
            self.events.condition_raised(name, &message);
        }
        tracing::warn!(condition = name, subject = key.1, "{message}");
    }

    /// Ends a condition; a log line is written only when it held.
    pub fn clear(&self, name: &'static str, subject: impl ToString) {
        let key = (name, subject.to_string());
        let mut held = self.lock();
        let Some(condition) = held.remove(&key) else { return };
        let others = held.keys().any(|(n, _)| *n == name);
        drop(held);
        if !others {
            metrics::gauge!("llm_access_condition", "condition" => name).set(0.0);
            self.events.condition_cleared(name, &condition.message);
        }
        tracing::info!(condition = name, subject = key.1, since = %condition.since, "no longer: {}", condition.message);
    }

    /// Ends every condition of one subject among `names`.
    pub fn clear_all(&self, names: &[&'static str], subject: impl ToString) {
        if self.lock().is_empty() {
            return;
        }
        let subject = subject.to_string();
        for name in names {
            self.clear(name, &subject);
        }
    }

    /// Ends every condition of one name whose subject is none of `still`.
    pub fn clear_others(&self, name: &'static str, still: &HashSet<Uuid>) {
        let over: Vec<String> = {
            let held = self.lock();
            let subjects = held.keys().filter(|(n, _)| *n == name).map(|(_, subject)| subject);
            subjects.filter(|subject| !Uuid::parse_str(subject).is_ok_and(|id| still.contains(&id))).cloned().collect()
        };
        for subject in over {
            self.clear(name, subject);
        }
    }

    /// Whether a condition of this name holds for anything.
    #[must_use]
    pub fn holds(&self, name: &str) -> bool {
        self.lock().keys().any(|(n, _)| *n == name)
    }

    /// All that hold: name, subject, condition.
    #[must_use]
    pub fn all(&self) -> Vec<(&'static str, String, Condition)> {
        self.lock().iter().map(|((name, subject), condition)| (*name, subject.clone(), condition.clone())).collect()
    }
}
