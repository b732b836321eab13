//! The steps by which a resource ends: block, wait, bill, remove, prove.

use std::time::Duration;

use jiff::Timestamp;
use litellm_client::{Key, TeamPatch};
use serde_json::Value;
use uuid::Uuid;

use super::{Action, Observed, Obstacle, terminating_since};
use crate::clock::after;
use crate::domain::{Mark, team_id};

/// The entry of a team's metadata that says since when it is being ended, so that a restart waits no longer than needed.
pub const TERMINATING_SINCE: &str = "terminating_since";

/// The next step of a termination.
#[derive(Clone, Debug)]
pub enum Removal {
    /// Stop calls, and note since when.
    Block(Vec<Action>),
    /// Calls may still come from other replicas, and their rows later still.
    Drain(Timestamp),
    /// Read the final usage and report it for the months since then; afterwards [`Removal::Remove`].
    Bill {
        /// From when on usage may not have been reported.
        since: Timestamp,
        /// What is to be removed once the usage is reported.
        then: Vec<Action>,
    },
    /// Nothing was ever used, or nothing is left but remains.
    Remove(Vec<Action>),
    /// Nothing is there; prove it and end the order.
    Nothing,
}

/// What comes next in ending a resource.
///
/// # Errors
/// A resource or team that is not ours.
pub fn plan_removal(owner: &str, seen: &Observed, now: Timestamp, drain: Duration) -> Result<Removal, Obstacle> {
    if let Some(obstacle) = seen.foreign(owner) {
        return Err(obstacle);
    }
    let remove = removal_actions(owner, seen);
    let Some(team) = &seen.team else {
        // Rows of a team that was removed by hand still count: they are read by its id.
        let was_sold = !seen.resource.backend_id.is_empty();
        return Ok(match (was_sold, remove.is_empty()) {
            (true, _) => Removal::Bill { since: now, then: remove },
            (false, false) => Removal::Remove(remove),
            (false, true) => Removal::Nothing,
        });
    };
    match terminating_since(team).filter(|since| team.blocked && *since <= now) {
        None => {
            let mut metadata = team.metadata.clone();
            metadata.insert(TERMINATING_SINCE.into(), Value::String(now.to_string()));
            let patch = TeamPatch { blocked: Some(true), metadata: Some(metadata), ..TeamPatch::default() };
            Ok(Removal::Block(vec![Action::UpdateTeam { team: team.team_id.clone(), patch }]))
        }
        Some(since) if now < after(since, drain) => Ok(Removal::Drain(after(since, drain))),
        Some(since) => Ok(Removal::Bill { since, then: remove }),
    }
}

/// What is left of a resource that Waldur shows as ended; only what carries our mark. Nothing is billed: Waldur takes no
/// usage for an ended resource.
#[must_use]
pub fn plan_orphan(owner: &str, seen: &Observed) -> Vec<Action> {
    let ours = seen.team.as_ref().is_none_or(|team| Mark::resource_of(&team.metadata, owner) == Some(seen.resource.uuid));
    let mut actions = removal_actions(owner, seen);
    if !ours {
        actions.retain(|action| matches!(action, Action::DeleteSecret(_) | Action::DeleteBrokenSecret(_)));
    }
    actions
}

fn removal_actions(owner: &str, seen: &Observed) -> Vec<Action> {
    let resource: Uuid = seen.resource.uuid;
    // With a team go all its keys. Without one only ours do: the gateway registers keys for teams that are not there.
    let goes = |key: &&Key| seen.team.is_some() || Mark::resource_of(&key.metadata, owner) == Some(resource);
    let keys = seen.keys.iter().filter(goes);
    let mut actions: Vec<Action> = keys.map(|key| Action::DeleteKey { hash: key.hash.clone(), alias: key.alias.clone() }).collect();
    actions.extend(seen.team.iter().map(|_| Action::DeleteTeam(team_id(resource))));
    if let Some(listed) = &seen.secrets {
        actions.extend(listed.stored.iter().map(|s| Action::DeleteSecret(Box::new(s.clone()))));
        actions.extend(listed.broken.iter().map(|b| Action::DeleteBrokenSecret(Box::new(b.clone()))));
    }
    actions
}
