//! Decides what to do from what was seen. Pure: no clock, no network, no randomness; the same view gives the same plan.

mod access;
mod evaluate;
mod notes;
mod offering;
mod registration;
mod removal;
mod usage;

#[cfg(test)]
mod laws;

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use litellm_client::{Key, NewTeam, OwnBound, Team, TeamPatch};
use secrecy::SecretString;
use serde_json::{Map, Value};
use url::Url;
use uuid::Uuid;
use waldur_client::{ApiKey, Endpoint, ReportSection, Resource};

use crate::catalogue::View;
use crate::config::OfferingConfig;
use crate::domain::{KeyAlias, Mark, TeamLimits};
use crate::secrets::{Broken, Connection, Listed, Rotation, Slot, Stored};

pub(crate) use access::API;
pub use access::{plan_access, wanted_access};
pub(crate) use evaluate::approval;
pub use evaluate::{Verdict, evaluate};
pub use notes::{Note, Notes, remembered};
pub use offering::{Finding, OfferingAction, OfferingPlan, Shop, Stage, plan_offering, removable_from, stage};
pub(crate) use offering::{RETIRED, plan_retirement};
pub use registration::{Difference, ID_PREFIX, Registration, Registry, deployment_id, differences, plan_registration, same_price};
pub use removal::{Removal, TERMINATING_SINCE, plan_orphan, plan_removal};
pub use usage::{
    Amounts, Decision, Filing, Ledger, Log, LoggedDay, Lower, ModelTotals, Proven, TeamTotals, TeamUse, Totals, Upstreams, Withheld,
    component_amounts, daily_amounts, decide, filing, is_over, usable_components,
};

/// Everything known about one resource at one moment.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Waldur's side.
    pub resource: Resource,
    /// The team under the resource's id; `None` is proven absence.
    pub team: Option<Team>,
    /// The live keys of that team.
    pub keys: Vec<Key>,
    /// Aliases of keys that were deleted, where they were asked for.
    pub retired_aliases: Vec<String>,
    /// The resource's Secrets; `None` where they have not been read yet.
    pub secrets: Option<Listed>,
    /// The keys Waldur knows; `None` where the server has no such thing or governs keys itself.
    pub api_keys: Option<Vec<ApiKey>>,
    /// How often the mark on the team's metadata was restored within the last hour.
    pub mark_repairs: u32,
}

/// Settings and learnt facts that a plan depends on.
#[derive(Clone, Debug)]
pub struct Rules<'a> {
    /// This environment.
    pub owner: &'a str,
    /// The offering that sells the resource.
    pub offering: &'a OfferingConfig,
    /// The models there are.
    pub catalogue: &'a View,
    /// Where customers reach the gateway, without `/v1`.
    pub public_url: &'a Url,
    /// Where Open WebUI reaches the gateway, without `/v1`.
    pub internal_url: &'a Url,
    /// Open WebUI's address for people.
    pub webui_url: Option<&'a Url>,
    /// Whether the Waldur server takes endpoints; where not, a report is submitted.
    pub endpoints: bool,
    /// Whether the gateway takes key values that we chose.
    pub custom_keys: bool,
    /// Whether the project key is ours to make; not where Waldur governs keys one by one.
    pub project_key: bool,
    /// The time of this look.
    pub now: Timestamp,
    /// How long a replaced key serves on.
    pub grace: Duration,
}

impl Rules<'_> {
    /// The keys that the agent makes.
    fn slots(&self) -> &'static [Slot] {
        if self.project_key { &[Slot::Chat, Slot::Project] } else { &[Slot::Chat] }
    }
}

/// What one resource is to look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Our mark for it.
    pub mark: Mark,
    /// Its caps.
    pub limits: TeamLimits,
    /// Its models; `None` leaves the team's list alone (nothing was said about models).
    pub models: Option<std::collections::BTreeSet<String>>,
    /// Whether calls are refused.
    pub blocked: bool,
    /// The order being worked on.
    pub order: Option<Uuid>,
    /// An API key may be shown in the report on servers that cannot show it otherwise.
    pub key_in_report: bool,
}

/// Something that only a person can resolve. The order stays open, nothing is touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The resource was made by another agent.
    ForeignBackend {
        /// The resource.
        resource: Uuid,
        /// What its `backend_id` holds.
        backend_id: String,
    },
    /// The team under the resource's id is not ours.
    ForeignTeam {
        /// The resource, whose id is also the team's.
        resource: Uuid,
        /// Another agent's owner string, where the team carries one.
        owner: Option<String>,
    },
    /// A Secret of the name we need exists and is not ours.
    ForeignSecret {
        /// Its name.
        name: String,
    },
    /// Somebody else set a variable of a Secret of ours, under another field manager.
    TakenSecret(String),
    /// The limits in Waldur cannot be served.
    Limits(String),
    /// Nothing says which models are meant, and there is no team to keep.
    NoModels,
}

impl Obstacle {
    /// Whether the order itself is at fault, so that it can never succeed as it stands.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Limits(_) | Self::NoModels)
    }

    /// The name of the condition it raises.
    #[must_use]
    pub fn condition(&self) -> &'static str {
        match self {
            Self::ForeignBackend { .. } => "foreign-backend-id",
            Self::ForeignTeam { .. } => "foreign-team",
            Self::ForeignSecret { .. } => "foreign-secret",
            Self::TakenSecret(_) => "taken-secret",
            Self::Limits(_) => "limits-not-servable",
            Self::NoModels => "no-models",
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignBackend { resource, backend_id } => {
                write!(f, "resource {} has the backend_id {backend_id:?}, which another agent gave it; it is left alone", resource.simple())
            }
            Self::ForeignTeam { resource, owner: None } => {
                write!(f, "team {0} exists and is not managed by this agent; `llm-access-agent adopt {0}` takes it over", resource.simple())
            }
            Self::ForeignTeam { resource, owner: Some(owner) } => {
                write!(f, "team {} belongs to the agent of {owner:?}; it is left alone", resource.simple())
            }
            Self::ForeignSecret { name } => {
                write!(f, "a Secret {name} exists and is not managed by this agent; move it away or give it our labels")
            }
            Self::TakenSecret(problem) => f.write_str(problem),
            Self::Limits(problem) => write!(f, "the limits cannot be served: {problem}"),
            Self::NoModels => f.write_str("nothing says which models are meant: set the option `models` of the resource"),
        }
    }
}

/// One call to one peer.
#[derive(Clone, Debug)]
pub enum Action {
    /// Choose a secret key and store it, state pending, before anything knows it.
    StoreSecret(SecretDraft),
    /// Make the team.
    CreateTeam(NewTeam),
    /// Change what differs at the team.
    UpdateTeam {
        /// The team.
        team: String,
        /// Only what changes.
        patch: TeamPatch,
    },
    /// Tell Waldur the team's id.
    SetBackendId(String),
    /// Register the stored key at the gateway.
    RegisterKey {
        /// Whose key.
        alias: KeyAlias,
        /// The key, as it was read back from its Secret.
        key: SecretString,
        /// Its metadata.
        metadata: Map<String, Value>,
    },
    /// Have the gateway make a key, then store it: for gateways that refuse keys we choose.
    MintKey {
        /// What to store, with the alias to ask for.
        draft: SecretDraft,
        /// The Secret to put it in, where there is one.
        base: Option<Box<Stored>>,
        /// Its metadata at the gateway.
        metadata: Map<String, Value>,
    },
    /// Remove a key that no Secret holds.
    DeleteKey {
        /// Its hash.
        hash: String,
        /// Its alias.
        alias: Option<String>,
    },
    /// Take bounds away that a key has of its own: it shares those of its team.
    FreeKey {
        /// Its hash.
        hash: String,
        /// Its alias.
        alias: KeyAlias,
        /// What it has.
        bounds: Vec<OwnBound>,
    },
    /// Let the customer see the project key in Waldur.
    ReportApiKey {
        /// The alias, which is Waldur's `client_id`.
        alias: KeyAlias,
        /// The key.
        key: SecretString,
    },
    /// Show the endpoints.
    SetEndpoints(Vec<Endpoint>),
    /// Show the same as a report, where the server has no endpoints.
    SubmitReport(Vec<ReportSection>),
    /// Ids for people who look at the resource.
    SetBackendMetadata(Map<String, Value>),
    /// Prove that the key works.
    VerifyKey {
        /// Whose key.
        alias: KeyAlias,
        /// The key.
        key: SecretString,
        /// What it must be able to call.
        models: Vec<String>,
    },
    /// Choose a new key and store it in the place of one that is to be replaced.
    ReplaceKey {
        /// The Secret as it was read.
        base: Box<Stored>,
        /// What to store.
        draft: SecretDraft,
    },
    /// Bring a Secret up to date.
    UpdateSecret {
        /// As it was read.
        base: Box<Stored>,
        /// As it should be.
        connection: Box<Connection>,
    },
    /// Remove a Secret.
    DeleteSecret(Box<Stored>),
    /// Remove a Secret of ours that cannot be read back.
    DeleteBrokenSecret(Box<Broken>),
    /// Put a newly chosen key in the place of a Secret that lost its own.
    ReplaceSecret {
        /// As it was read.
        broken: Box<Broken>,
        /// What to store.
        draft: SecretDraft,
    },
    /// Remove the team, and with it what keys it has left.
    DeleteTeam(String),
}

/// A Secret to be, without its key.
#[derive(Clone, Debug)]
pub struct SecretDraft {
    /// Alias, slot and number.
    pub alias: KeyAlias,
    /// Its name.
    pub name: String,
    /// The offering.
    pub offering: Uuid,
    /// The project.
    pub project: Option<Uuid>,
    /// Base address with `/v1`.
    pub base_url: String,
    /// Models.
    pub models: Vec<String>,
    /// The embedder for retrieval, chat only.
    pub embedder: Option<String>,
    /// The order it is made for.
    pub order: Option<Uuid>,
    /// The key that it comes after, while that may still be used.
    pub rotation: Rotation,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StoreSecret(draft) => write!(f, "store a new {} key in Secret {}", draft.alias.slot.as_str(), draft.name),
            Self::CreateTeam(team) => write!(f, "create team {} ({})", team.team_id, describe_team(team)),
            Self::UpdateTeam { team, patch } => write!(f, "update team {team}: {}", describe_patch(patch)),
            Self::SetBackendId(id) => write!(f, "set backend_id to {id}"),
            Self::RegisterKey { alias, .. } => write!(f, "register key {alias}"),
            Self::MintKey { draft, .. } => write!(f, "have the gateway make key {}", draft.alias),
            Self::DeleteKey { hash, alias } => {
                write!(
                    f,
                    "delete key {} ({}…), which no Secret holds",
                    alias.as_deref().unwrap_or("without alias"),
                    hash.get(..8).unwrap_or(hash)
                )
            }
            Self::FreeKey { alias, bounds, .. } => {
                write!(
                    f,
                    "clear what key {alias} has of its own beside its team: {}",
                    bounds.iter().map(|bound| bound.as_str()).collect::<Vec<_>>().join(", ")
                )
            }
            Self::ReportApiKey { alias, .. } => write!(f, "report key {alias} to Waldur"),
            Self::SetEndpoints(endpoints) => {
                write!(f, "set endpoints {}", endpoints.iter().map(|e| e.name.as_str()).collect::<Vec<_>>().join(", "))
            }
            Self::SubmitReport(_) => f.write_str("submit the report"),
            Self::SetBackendMetadata(_) => f.write_str("set backend metadata"),
            Self::VerifyKey { alias, .. } => write!(f, "verify that key {alias} works"),
            Self::ReplaceKey { base, draft } => write!(
                f,
                "store a new {} key in Secret {} in the place of {}",
                draft.alias.slot.as_str(),
                base.connection.name,
                base.connection.alias
            ),
            Self::UpdateSecret { base, connection } => write!(f, "update Secret {} ({:?})", base.connection.name, connection.state),
            Self::DeleteSecret(stored) => write!(f, "delete Secret {}", stored.connection.name),
            Self::DeleteBrokenSecret(broken) => write!(f, "delete Secret {}, which is of no use: {}", broken.name, broken.why),
            Self::ReplaceSecret { broken, draft } => {
                write!(f, "store a new {} key in Secret {}: {}", draft.alias.slot.as_str(), broken.name, broken.why)
            }
            Self::DeleteTeam(team) => write!(f, "delete team {team}"),
        }
    }
}

fn describe_team(team: &NewTeam) -> String {
    let cap = |name: &str, value: Option<String>| value.map_or_else(|| format!("{name} none"), |v| format!("{name} {v}"));
    [
        format!("models {}", team.models.as_slice().join(", ")),
        cap("max_budget", team.max_budget.map(|v| v.to_string())),
        cap("tpm_limit", team.tpm_limit.map(|v| v.to_string())),
        cap("rpm_limit", team.rpm_limit.map(|v| v.to_string())),
        format!("blocked {}", team.blocked),
    ]
    .join("; ")
}

fn describe_patch(patch: &TeamPatch) -> String {
    use litellm_client::Change;
    fn change<T: ToString>(parts: &mut Vec<String>, name: &str, change: &Change<T>) {
        match change {
            Change::Keep => {}
            Change::Clear => parts.push(format!("{name} → none")),
            Change::Set(value) => parts.push(format!("{name} → {}", value.to_string())),
        }
    }
    let mut parts = Vec::new();
    if let Some(models) = &patch.models {
        parts.push(format!("models → {}", models.as_slice().join(", ")));
    }
    change(&mut parts, "max_budget", &patch.max_budget);
    change(&mut parts, "budget_duration", &patch.budget_duration);
    change(&mut parts, "tpm_limit", &patch.tpm_limit);
    change(&mut parts, "rpm_limit", &patch.rpm_limit);
    if let Some(blocked) = patch.blocked {
        parts.push(format!("blocked → {blocked}"));
    }
    if patch.metadata.is_some() {
        parts.push("metadata (ours restored, foreign entries kept)".into());
    }
    parts.join("; ")
}

/// Whose the team is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Nobody's: there is none.
    Absent,
    /// Ours.
    Ours,
    /// Somebody else's.
    Foreign(Option<String>),
}

impl Observed {
    /// Whose the team under the resource's id is. A team that lost its mark is still ours when Waldur's `backend_id`
    /// says so, since that is only written after the mark was seen.
    #[must_use]
    pub fn ownership(&self, owner: &str) -> Ownership {
        let Some(team) = &self.team else { return Ownership::Absent };
        match Mark::owner_of(&team.metadata) {
            Some(marked) if marked == owner => Ownership::Ours,
            Some(marked) => Ownership::Foreign(Some(marked.to_owned())),
            None if self.resource.backend_id == team.team_id => Ownership::Ours,
            None => Ownership::Foreign(None),
        }
    }

    /// The obstacle in the way of touching this resource at all, if there is one.
    #[must_use]
    pub fn foreign(&self, owner: &str) -> Option<Obstacle> {
        foreign_backend(&self.resource).or_else(|| match self.ownership(owner) {
            Ownership::Foreign(owner) => Some(Obstacle::ForeignTeam { resource: self.resource.uuid, owner }),
            Ownership::Absent | Ownership::Ours => None,
        })
    }
}

/// The obstacle of a resource that Waldur ties to something which is not named after it.
#[must_use]
pub fn foreign_backend(resource: &Resource) -> Option<Obstacle> {
    let backend_id = resource.backend_id.trim();
    let foreign = !backend_id.is_empty() && Uuid::parse_str(backend_id).ok() != Some(resource.uuid);
    foreign.then(|| Obstacle::ForeignBackend { resource: resource.uuid, backend_id: backend_id.chars().take(100).collect() })
}

/// When an earlier step was marked on the team, read back from its metadata.
#[must_use]
pub fn terminating_since(team: &Team) -> Option<Timestamp> {
    team.metadata.get(TERMINATING_SINCE)?.as_str()?.parse().ok()
}
