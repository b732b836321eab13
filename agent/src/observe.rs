//! Reads what the peers hold about one resource. The only place that reads for a decision.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use litellm_client::{Class, Key, Team};
use uuid::Uuid;
use waldur_client::{ApiKey, ApiKeyFilter, Resource};

use crate::agent::{Agent, Failure};
use crate::clock::after;
use crate::domain::{Mark, ModelRequest, team_id};
use crate::features::Feature;
use crate::gate::Peer;
use crate::plan::Observed;
use crate::secrets::Read;

pub mod packed;

use packed::Packed;

/// What one look should cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Everything but the Secrets: those are stored first and then read back.
    BeforeSecrets,
    /// Everything.
    Full,
}

impl Agent {
    /// Looks at one resource in all peers.
    pub(crate) async fn observe(&self, resource: Resource, offering: Uuid, depth: Depth) -> Result<Observed, Failure> {
        let (team, keys) = self.observe_team(&resource).await?;
        let retired_aliases =
            if team.is_none() && !resource.backend_id.is_empty() { self.retired_aliases(resource.uuid).await? } else { Vec::new() };
        let api_keys = self.observe_api_keys(&resource, offering).await?;
        let mut seen =
            Observed { mark_repairs: self.mark_repairs(resource.uuid), team, keys, retired_aliases, secrets: None, api_keys, resource };
        if depth == Depth::Full {
            self.observe_secrets(&mut seen).await?;
        }
        Ok(seen)
    }

    /// What there is to remove of a resource: keys at Waldur do not matter, since they end with it.
    pub(crate) async fn observe_for_removal(&self, resource: Resource) -> Result<Observed, Failure> {
        let (team, mut keys) = self.observe_team(&resource).await?;
        if team.is_none() {
            keys = self.gateway.keys_of_team(&team_id(resource.uuid)).await?;
        }
        let mut seen = Observed { mark_repairs: 0, team, keys, retired_aliases: Vec::new(), secrets: None, api_keys: None, resource };
        self.observe_secrets(&mut seen).await?;
        Ok(seen)
    }

    /// Reads the Secrets of a resource (again).
    pub(crate) async fn observe_secrets(&self, seen: &mut Observed) -> Result<(), Failure> {
        seen.secrets = Some(self.secrets.of_resource(seen.resource.uuid, seen.resource.project).await?);
        self.note_answer(Peer::Secrets);
        Ok(())
    }

    /// The team of a resource and its keys. That there is no team is only believed where the gateway says so honestly: its
    /// "not found" also means that its database is down.
    async fn observe_team(&self, resource: &Resource) -> Result<(Option<Team>, Vec<Key>), Failure> {
        let id = team_id(resource.uuid);
        if resource.backend_id.is_empty() && self.gateway.team(&id).await?.is_none() {
            self.note_answer(Peer::Gateway);
            return Ok((None, Vec::new()));
        }
        match self.gateway.team_with_keys(&id).await {
            Ok((team, keys)) => {
                self.note_answer(Peer::Gateway);
                Ok((Some(team), keys.into_iter().filter(|key| !key.deleted).collect()))
            }
            Err(error) if error.class() == Class::NotFound => match self.gateway.team(&id).await? {
                None => Ok((None, Vec::new())),
                Some(_) => Err(Failure::Transient {
                    peer: Peer::Gateway,
                    message: format!("the gateway lists team {id} and also says that it is not there; its database may be failing"),
                    retry_after: None,
                    unreachable: false,
                }),
            },
            Err(error) => Err(error.into()),
        }
    }

    async fn retired_aliases(&self, resource: Uuid) -> Result<Vec<String>, Failure> {
        let keys = self.gateway.deleted_keys_of_team(&team_id(resource)).await?;
        Ok(keys.into_iter().filter_map(|key| key.alias).collect())
    }

    async fn observe_api_keys(&self, resource: &Resource, offering: Uuid) -> Result<Option<Vec<ApiKey>>, Failure> {
        if !self.features.worth_trying(Feature::ApiKeys) || self.is_governed(offering).await? {
            return Ok(None);
        }
        let filter = ApiKeyFilter { resource: Some(resource.uuid), offering: None };
        self.api_keys(filter).await
    }

    /// The keys Waldur knows; `None` where this server has no such thing.
    pub(crate) async fn api_keys(&self, filter: ApiKeyFilter) -> Result<Option<Vec<ApiKey>>, Failure> {
        match self.waldur.api_keys(filter).await {
            Ok(keys) => {
                self.features.learn(Feature::ApiKeys, true);
                Ok(Some(keys))
            }
            Err(error) if error.class() == waldur_client::Class::NoSuchRoute => {
                self.features.learn(Feature::ApiKeys, false);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether Waldur governs the keys of this offering one by one. Asked once per process and at each slow beat.
    pub(crate) async fn is_governed(&self, offering: Uuid) -> Result<bool, Failure> {
        let known = self.memory().governed.get(&offering).copied();
        match known {
            Some(governed) => Ok(governed),
            None => Ok(self.refresh_governed(offering).await?),
        }
    }

    pub(crate) async fn refresh_governed(&self, offering: Uuid) -> Result<bool, waldur_client::Error> {
        let read = self.waldur.offering(offering).await?;
        self.remember(&read);
        let governed = read.plugin_options.get("enable_api_key_provisioning").and_then(serde_json::Value::as_bool).unwrap_or(false);
        self.memory().governed.insert(offering, governed);
        if governed {
            self.conditions.raise(
                "keys-governed-by-waldur",
                offering.simple(),
                "the offering has enable_api_key_provisioning on: Waldur governs keys one by one, which this agent does not serve; its keys are not reported there",
            );
        } else {
            self.conditions.clear("keys-governed-by-waldur", offering.simple());
        }
        Ok(governed)
    }
}

/// Everything of ours at the peers, read page by page; the basis of the slow beat. It holds ten thousand resources at once, so that
/// it keeps no more of each than a comparison needs: whatever is written rests on a look at the one resource.
#[derive(Debug, Default)]
pub struct World {
    /// The resources of our offerings that have not ended, by uuid.
    pub resources: BTreeMap<Uuid, (Uuid, Packed<Resource>)>,
    /// All teams at the gateway, by id.
    pub teams: BTreeMap<String, Packed<Team>>,
    /// All live keys at the gateway, by team id.
    pub keys: BTreeMap<String, Vec<Packed<Key>>>,
    /// All our Secrets, by resource.
    pub secrets: BTreeMap<Uuid, crate::secrets::Listed>,
    /// Secrets of ours that name no resource.
    pub nameless: Vec<crate::secrets::Broken>,
    /// The keys Waldur knows, by offering and resource; of offerings that have such a thing.
    pub api_keys: BTreeMap<Uuid, KnownApiKeys>,
    /// Erred orders of our offerings.
    pub erred_orders: Vec<waldur_client::Order>,
}

/// The keys that Waldur lists of one offering, by resource.
pub type KnownApiKeys = Arc<BTreeMap<Uuid, Vec<ApiKey>>>;

/// How long a list of all keys at Waldur serves the passes that find nothing amiss. Only the agent and Waldur's staff change
/// it, a repair reads the keys of its resource anew, and at ten thousand resources it would be a fifth of all calls of a pass.
const API_KEYS_FRESH: Duration = Duration::from_secs(3600);

/// The lists of keys at Waldur that later passes use again.
#[derive(Debug, Default)]
pub(crate) struct ApiKeyLists {
    lists: HashMap<Uuid, (Timestamp, KnownApiKeys)>,
    /// How often they were forgotten.
    forgotten: u64,
}

impl ApiKeyLists {
    /// The next pass reads them anew, and a list that is being read meanwhile is not kept.
    pub(crate) fn forget(&mut self) {
        self.lists.clear();
        self.forgotten += 1;
    }
}

impl Agent {
    /// All keys that Waldur lists of an offering, at most an hour old; `None` where this server has no such thing.
    pub(crate) async fn all_api_keys(&self, offering: Uuid) -> Result<Option<KnownApiKeys>, Failure> {
        let (known, forgotten) = {
            let kept = &self.memory().api_keys;
            (kept.lists.get(&offering).cloned(), kept.forgotten)
        };
        if let Some((read, known)) = known.filter(|(read, _)| self.clock.now() < after(*read, API_KEYS_FRESH)) {
            tracing::trace!(%read, "the list of API keys at Waldur is used again");
            return Ok(Some(known));
        }
        let read = self.clock.now();
        let Some(keys) = self.api_keys(ApiKeyFilter { offering: Some(offering), resource: None }).await? else { return Ok(None) };
        let mut by_resource: BTreeMap<Uuid, Vec<ApiKey>> = BTreeMap::new();
        for key in keys {
            if let Some(resource) = key.resource {
                push(by_resource.entry(resource).or_default(), key);
            }
        }
        let known = Arc::new(by_resource);
        let kept = &mut self.memory().api_keys;
        if kept.forgotten == forgotten {
            kept.lists.insert(offering, (read, Arc::clone(&known)));
        }
        Ok(Some(known))
    }
}

/// Adds one to a list that stays short. Vectors make room for four at once, which for ten thousand resources is half of what
/// their keys and Secrets take.
pub(crate) fn push<T>(list: &mut Vec<T>, one: T) {
    list.reserve_exact(1);
    list.push(one);
}

impl World {
    /// What is kept of a resource.
    pub(crate) fn packed(mut resource: Resource) -> Packed<Resource> {
        // The form of the create order counts only where the options do not say which models are meant.
        if ModelRequest::read([&resource.options]) != ModelRequest::Missing {
            resource.attributes = serde_json::Map::new();
        }
        Packed::new(resource)
    }

    pub(crate) fn add_secret(&mut self, read: Read) {
        match read {
            Ok(stored) => push(&mut self.secrets.entry(stored.connection.resource).or_default().stored, stored),
            Err(broken) => match broken.resource {
                Some(resource) => push(&mut self.secrets.entry(resource).or_default().broken, *broken),
                None => self.nameless.push(*broken),
            },
        }
    }

    /// The view of one resource in this world.
    #[must_use]
    pub fn view(&self, offering: Uuid, resource: &Packed<Resource>, mark_repairs: u32) -> Observed {
        let uuid = resource.bare().uuid;
        let id = team_id(uuid);
        Observed {
            resource: resource.whole(),
            team: self.teams.get(&id).map(Packed::whole),
            keys: self.keys.get(&id).into_iter().flatten().map(Packed::whole).collect(),
            retired_aliases: Vec::new(),
            secrets: Some(self.secrets.get(&uuid).cloned().unwrap_or_default()),
            api_keys: self.api_keys.get(&offering).map(|known| known.get(&uuid).cloned().unwrap_or_default()),
            mark_repairs,
        }
    }

    /// The resources that teams, keys and Secrets with the mark of this owner name, and the offerings that they name. Of a living
    /// resource it is enough that its team is there.
    pub(crate) fn marked(&self, owner: &str) -> BTreeMap<Uuid, Option<Uuid>> {
        let of = |metadata: &serde_json::Map<String, serde_json::Value>| {
            Some((Mark::resource_of(metadata, owner)?, Mark::offering_of(metadata, owner)))
        };
        let living = |team: &String| {
            let id = Uuid::parse_str(team).ok()?;
            self.resources.get(&id).map(|(offering, _)| (id, Some(*offering)))
        };
        let teams = self.teams.iter().filter_map(|(id, team)| living(id).or_else(|| of(&team.whole().metadata)));
        let keys = self.keys.iter().filter(|(team, _)| living(team).is_none());
        let keys = keys.flat_map(|(team, keys)| keys.iter().map(move |key| (team, key.whole())));
        // A key that somebody moved to another team says nothing of its resource.
        let keys = keys.filter_map(|(team, key)| of(&key.metadata).filter(|(resource, _)| team_id(*resource) == *team));
        let secrets = self.secrets.iter().map(|(id, listed)| (*id, listed.stored.first().map(|stored| stored.connection.offering)));
        keys.chain(teams).chain(secrets).collect()
    }
}
