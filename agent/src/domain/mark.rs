//! How the agent knows its own teams and keys among others: metadata at the gateway.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::team_id;

/// The value of `managed_by` on everything the agent makes.
pub const MANAGED_BY: &str = "llm-access-agent";

/// The mark on a team or key. `owner` is one string per environment, so that two environments on one gateway never
/// touch each other's things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The environment.
    pub owner: String,
    /// The Waldur offering.
    pub offering: Uuid,
    /// The Waldur resource.
    pub resource: Uuid,
    /// The Waldur project, where the server tells it.
    pub project: Option<Uuid>,
    /// The Waldur customer, where the server tells it.
    pub customer: Option<Uuid>,
}

impl Mark {
    /// The metadata entries of this mark.
    #[must_use]
    pub fn entries(&self) -> Map<String, Value> {
        let id = |uuid: Uuid| Value::String(team_id(uuid));
        let mut entries = Map::new();
        entries.insert("managed_by".into(), Value::String(MANAGED_BY.into()));
        entries.insert("owner".into(), Value::String(self.owner.clone()));
        entries.insert("offering".into(), id(self.offering));
        entries.insert("resource".into(), id(self.resource));
        for (name, uuid) in [("project", self.project), ("customer", self.customer)] {
            if let Some(uuid) = uuid {
                entries.insert(name.into(), id(uuid));
            }
        }
        entries
    }

    /// `metadata` with this mark in it and every foreign entry kept, or `None` where the mark is already intact.
    /// The gateway replaces the whole map, so what is sent must hold the foreign entries too.
    #[must_use]
    pub fn merged_into(&self, metadata: &Map<String, Value>) -> Option<Map<String, Value>> {
        let ours = self.entries();
        if ours.iter().all(|(name, value)| metadata.get(name) == Some(value)) {
            return None;
        }
        let mut merged = metadata.clone();
        merged.extend(ours);
        Some(merged)
    }

    /// Who marked `metadata`: `Some(owner)` where some agent of this kind did.
    #[must_use]
    pub fn owner_of(metadata: &Map<String, Value>) -> Option<&str> {
        (metadata.get("managed_by")?.as_str()? == MANAGED_BY).then_some(())?;
        metadata.get("owner")?.as_str()
    }

    /// The resource that `metadata` names, where `owner` marked it.
    #[must_use]
    pub fn resource_of(metadata: &Map<String, Value>, owner: &str) -> Option<Uuid> {
        (Self::owner_of(metadata)? == owner).then_some(())?;
        Uuid::parse_str(metadata.get("resource")?.as_str()?).ok()
    }

    /// The offering that `metadata` names, where `owner` marked it.
    #[must_use]
    pub fn offering_of(metadata: &Map<String, Value>, owner: &str) -> Option<Uuid> {
        (Self::owner_of(metadata)? == owner).then_some(())?;
        Uuid::parse_str(metadata.get("offering")?.as_str()?).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn foreign_metadata_is_kept_and_an_intact_mark_is_not_sent_again() {
        let mark = Mark { owner: "icarus".into(), offering: Uuid::nil(), resource: Uuid::max(), project: None, customer: None };
        let foreign = json!({"logging": [], "cost_centre": "77"}).as_object().unwrap().clone();
        let merged = mark.merged_into(&foreign).unwrap();
        assert_eq!(merged["cost_centre"], "77");
        assert_eq!(mark.merged_into(&merged), None);
        assert_eq!(Mark::resource_of(&merged, "icarus"), Some(Uuid::max()));
        assert_eq!(Mark::resource_of(&merged, "daedalus"), None);
        assert_eq!(Mark::owner_of(&foreign), None);
    }
}
