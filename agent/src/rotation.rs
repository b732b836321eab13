//! Replaces keys on an operator's word.
//!
//! The word is written on the Secret of the key, and everything after it is drift like any other: the plan stores the next
//! key in the Secret, registers and proves it, tells Waldur, and deletes the old one when its time is over. Whoever looks
//! next goes on where this stopped, here or in a running agent.

use jiff::Timestamp;
use uuid::Uuid;
use waldur_client::ResourceState;

use crate::agent::{Agent, Failure};
use crate::observe::Depth;
use crate::plan::Observed;
use crate::secrets::{Connection, Rotation, SecretState, Slot, Stored};

/// Attempts to write on a Secret that somebody else writes as well.
const ATTEMPTS: usize = 5;

/// What became of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotated {
    /// Which key.
    pub slot: Slot,
    /// The alias of the key that the Secret holds now.
    pub alias: String,
    /// The Secret.
    pub secret: String,
    /// False where an earlier replacement was still under way: it was finished and no other begun.
    pub begun: bool,
    /// Until when the old key serves; nothing where it is gone.
    pub old_until: Option<Timestamp>,
}

/// Why keys were not replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRotated {
    /// What was asked for cannot be.
    Wrong(String),
    /// Trouble with a peer; where a replacement had begun, a running agent or the next attempt finishes it.
    Failed(Failure),
}

impl<F: Into<Failure>> From<F> for NotRotated {
    fn from(failure: F) -> Self {
        Self::Failed(failure.into())
    }
}

impl Agent {
    /// Replaces the keys in `slots`; those that the agent makes, where none is named. With `at_once` the old ones are gone
    /// afterwards, otherwise they serve on for `rotation.grace`.
    ///
    /// A replacement that an earlier call left unfinished, or whose old key still serves, is finished and no other begun,
    /// so that a repeat after an error does no harm.
    ///
    /// # Errors
    /// A resource that is not in service, a key that the agent does not make, or a peer in trouble.
    pub async fn rotate_keys(&self, resource: Uuid, slots: &[Slot], at_once: bool) -> Result<Vec<Rotated>, NotRotated> {
        let id = resource;
        let resource = self.waldur.resource(id).await?;
        let Some(offering) = resource.offering.and_then(|uuid| self.offering(uuid)) else {
            return Err(NotRotated::Wrong(format!("resource {} is of an offering that is not in the configuration", id.simple())));
        };
        if !matches!(resource.state, ResourceState::Ok | ResourceState::Erred) {
            return Err(NotRotated::Wrong(format!(
                "resource {} is {}: its keys can be replaced when no order is at work on it",
                id.simple(),
                resource.state
            )));
        }
        let Some(_busy) = self.schedule.take(id) else {
            return Err(Failure::Conflict { message: format!("resource {} is being worked on; try again", id.simple()) }.into());
        };
        let governed = self.is_governed(offering.uuid).await?;
        if governed && slots.contains(&Slot::Project) {
            return Err(NotRotated::Wrong(
                "Waldur governs the project keys of this offering (enable_api_key_provisioning); only the chat key is the agent's".into(),
            ));
        }
        let slots: &[Slot] = match slots {
            [] if governed => &[Slot::Chat],
            [] => &[Slot::Chat, Slot::Project],
            some => some,
        };
        let before = self.secrets.of_resource(id, resource.project).await.map_err(Failure::from)?;
        let unfinished = |stored: &Stored| {
            stored.connection.state == SecretState::Pending || matches!(stored.connection.rotation, Rotation::Wanted { .. })
        };
        let unfinished: Vec<Slot> = before.stored.iter().filter(|stored| unfinished(stored)).map(|stored| stored.connection.slot).collect();

        // All else is put in order first: that shows that every peer is there before anything is replaced.
        let mut seen = self.converge(offering, None, resource, Depth::Full).await?;
        let mut begun = Vec::new();
        for slot in slots {
            let next = |rotation: &Rotation| match rotation {
                Rotation::Retiring { .. } if at_once && unfinished.contains(slot) => Some(Rotation::None),
                Rotation::Retiring { .. } if !at_once => None,
                Rotation::Wanted { .. } => None,
                _ if unfinished.contains(slot) => None,
                _ => Some(Rotation::Wanted { at_once }),
            };
            if self.write_rotation(&mut seen, *slot, next).await? {
                begun.push(*slot);
            }
        }
        if !begun.is_empty() {
            let resource = self.waldur.resource(id).await?;
            seen = self.converge(offering, None, resource, Depth::Full).await?;
        }
        slots.iter().map(|slot| rotated(&seen, *slot, begun.contains(slot) && !unfinished.contains(slot))).collect()
    }

    /// Writes on a Secret what is to happen to its key; says whether anything was written.
    async fn write_rotation(
        &self,
        seen: &mut Observed,
        slot: Slot,
        next: impl Fn(&Rotation) -> Option<Rotation>,
    ) -> Result<bool, NotRotated> {
        for _ in 0..ATTEMPTS {
            let stored = secret(seen, slot)?;
            let Some(rotation) = next(&stored.connection.rotation) else { return Ok(false) };
            self.must_lead()?;
            match self.secrets.update(stored, &Connection { rotation, ..stored.connection.clone() }).await.map_err(Failure::from) {
                Ok(()) => return Ok(true),
                Err(Failure::Conflict { .. }) => self.observe_secrets(seen).await?,
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(Failure::Conflict {
            message: format!("Secret {} is written by somebody else all the time; try again", secret(seen, slot)?.connection.name),
        }
        .into())
    }
}

fn secret(seen: &Observed, slot: Slot) -> Result<&Stored, NotRotated> {
    let found = seen.secrets.iter().flat_map(|listed| &listed.stored).find(|stored| stored.connection.slot == slot);
    found.ok_or_else(|| {
        NotRotated::Wrong(format!(
            "resource {} has no {} key; `llm-access-agent status` shows what it has",
            seen.resource.uuid.simple(),
            slot.as_str()
        ))
    })
}

fn rotated(seen: &Observed, slot: Slot, begun: bool) -> Result<Rotated, NotRotated> {
    let stored = secret(seen, slot)?;
    let old_until = match &stored.connection.rotation {
        Rotation::Retiring { until, .. } => *until,
        Rotation::None | Rotation::Wanted { .. } => None,
    };
    Ok(Rotated { slot, alias: stored.connection.alias.clone(), secret: stored.connection.name.clone(), begun, old_until })
}
