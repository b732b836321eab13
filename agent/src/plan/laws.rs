//! Laws of the planner, on random worlds: it converges and then plans nothing; it never touches what is not ours; the order
//! in which things were listed does not matter; an end ends.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use litellm_client::{Change, Key, Team, key_hash};
use proptest::prelude::*;
use rust_decimal::Decimal;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};
use url::Url;
use uuid::Uuid;
use waldur_client::{ApiKey, Order, OrderKind, Resource, ResourceState};

use super::*;
use crate::config::{self, ApiKeyDelivery, OfferingConfig, OnDownscale};
use crate::domain::{KeyAlias, team_id};
use crate::secrets::{SecretState, Stored};

const RESOURCE: Uuid = Uuid::from_u128(0x1f2e_3d4c_5b6a_4798_8990_a1b2_c3d4_e5f6);
const OFFERING: Uuid = Uuid::from_u128(0x0d9a_1e3b_0000_4a2b_9f11_0000_0000_0042);
const MODELS: [&str; 4] = ["kestrel-8b", "heron-70b", "qwen2.5-0.5b", "gone-1b"];
const OWNER: &str = "icarus";
const NOW: &str = "2026-11-30T00:00:00Z";
const GRACE: Duration = Duration::from_secs(600);

fn offering() -> OfferingConfig {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yml");
    let text = format!(
        "owner: {OWNER}\nwaldur: {{api_url: 'http://127.0.0.1:1/api/', token_file: /t}}\ngateway: {{url: 'http://127.0.0.1:2', public_url: 'https://llm.example.org', key_file: /k}}\n\
         catalogue: {{file: /c}}\nsecrets: {{store: directory, path: /s}}\nofferings:\n  - uuid: {OFFERING}\n    always_include: [embed]\n    limits: {{allow_unlimited: true}}\n"
    );
    std::fs::write(&file, text).unwrap();
    config::load(Some(&file), &[]).unwrap().config.offerings.remove(0)
}

fn catalogue() -> View {
    let parsed = crate::catalogue::parse(
        "inference_models:\n  - {name: k, served_name: kestrel-8b}\n  - {name: h, served_name: heron-70b}\n  - {name: q, served_name: qwen2.5-0.5b}\n  - {name: e, served_name: embed, runtime: tei}\n",
        "catalogue.yml",
    );
    View::of(parsed.unwrap())
}

struct Site {
    offering: OfferingConfig,
    catalogue: View,
    public: Url,
    internal: Url,
}

impl Site {
    fn new() -> Self {
        Self {
            offering: offering(),
            catalogue: catalogue(),
            public: "https://llm.example.org".parse().unwrap(),
            internal: "http://litellm:4000".parse().unwrap(),
        }
    }
    fn rules(&self, custom_keys: bool, endpoints: bool, project_key: bool) -> Rules<'_> {
        Rules {
            owner: OWNER,
            offering: &self.offering,
            catalogue: &self.catalogue,
            public_url: &self.public,
            internal_url: &self.internal,
            webui_url: None,
            endpoints,
            custom_keys,
            project_key,
            now: now(),
            grace: GRACE,
        }
    }
}

/// A pure stand-in for the peers: what each action leaves behind.
#[derive(Clone, Debug)]
struct Peers {
    seen: Observed,
    minted: u32,
    foreign_writes: Vec<String>,
}

fn secret(n: u32) -> SecretString {
    format!("sk-test-{n:08}").into()
}

impl Peers {
    fn stored(&mut self) -> &mut Vec<Stored> {
        &mut self.seen.secrets.get_or_insert_default().stored
    }

    fn connection(draft: &SecretDraft, key: SecretString) -> Connection {
        Connection {
            slot: draft.alias.slot,
            resource: RESOURCE,
            offering: draft.offering,
            project: draft.project,
            name: draft.name.clone(),
            alias: draft.alias.to_string(),
            number: draft.alias.number,
            state: SecretState::Pending,
            key,
            base_url: draft.base_url.clone(),
            models: draft.models.clone(),
            embedder: draft.embedder.clone(),
            order: draft.order,
            rotation: draft.rotation.clone(),
        }
    }

    fn live(&mut self, key: &SecretString, alias: &KeyAlias, metadata: &Map<String, Value>) {
        let hash = key_hash(key);
        assert!(self.seen.keys.iter().all(|k| k.alias.as_deref() != Some(&alias.to_string())), "the alias {alias} is taken");
        self.seen.keys.push(Key {
            hash,
            alias: Some(alias.to_string()),
            team_id: Some(team_id(RESOURCE)),
            metadata: metadata.clone(),
            ..Key::default()
        });
    }

    fn apply(&mut self, action: &Action) {
        match action {
            Action::StoreSecret(draft) | Action::ReplaceSecret { draft, .. } => {
                if !self.seen.secrets.iter().flat_map(|l| &l.stored).any(|s| s.connection.name == draft.name) {
                    self.minted += 1;
                    let key = secret(self.minted);
                    self.stored().push(Stored::imagined(Self::connection(draft, key), true, None));
                }
            }
            Action::CreateTeam(new) => {
                assert!(self.seen.team.is_none());
                self.seen.team = Some(Team {
                    team_id: new.team_id.clone(),
                    alias: Some(new.team_alias.clone()),
                    models: new.models.as_slice().to_vec(),
                    max_budget: new.max_budget,
                    budget_duration: new.budget_duration.clone(),
                    tpm_limit: new.tpm_limit,
                    rpm_limit: new.rpm_limit,
                    blocked: new.blocked,
                    metadata: new.metadata.clone(),
                    ..Team::default()
                });
            }
            Action::UpdateTeam { patch, .. } => {
                let team = self.seen.team.as_mut().expect("a team to update");
                fn set<T: Clone>(to: &mut Option<T>, change: &Change<T>) {
                    match change {
                        Change::Keep => {}
                        Change::Clear => *to = None,
                        Change::Set(value) => *to = Some(value.clone()),
                    }
                }
                set(&mut team.max_budget, &patch.max_budget);
                set(&mut team.budget_duration, &patch.budget_duration);
                set(&mut team.tpm_limit, &patch.tpm_limit);
                set(&mut team.rpm_limit, &patch.rpm_limit);
                if let Some(models) = &patch.models {
                    team.models = models.as_slice().to_vec();
                }
                team.blocked = patch.blocked.unwrap_or(team.blocked);
                if let Some(metadata) = &patch.metadata {
                    team.metadata = metadata.clone();
                }
            }
            Action::SetBackendId(id) => self.seen.resource.backend_id = id.clone(),
            Action::RegisterKey { alias, key, metadata } => {
                let stored = self.seen.secrets.iter().flat_map(|l| &l.stored).any(|s| key_hash(&s.connection.key) == key_hash(key));
                assert!(stored, "a key is registered that no Secret holds");
                let (alias, key, metadata) = (alias.clone(), key.clone(), metadata.clone());
                self.live(&key, &alias, &metadata);
            }
            Action::MintKey { draft, base, metadata } => {
                self.minted += 1;
                let key = secret(self.minted);
                self.live(&key, &draft.alias, metadata);
                let mut connection = Self::connection(draft, key);
                if let Some(base) = base {
                    connection.name = base.connection.name.clone();
                    let name = base.connection.name.clone();
                    self.stored().retain(|s| s.connection.name != name);
                }
                self.stored().push(Stored::imagined(connection, true, None));
            }
            Action::DeleteKey { hash, .. } => {
                let ours = |key: &Key| Mark::owner_of(&key.metadata) == Some(OWNER);
                let foreign: Vec<String> = self.seen.keys.iter().filter(|k| k.hash == *hash && !ours(k)).map(|k| k.hash.clone()).collect();
                self.foreign_writes.extend(foreign);
                self.seen.keys.retain(|key| key.hash != *hash);
            }
            Action::FreeKey { hash, .. } => {
                let key = self.seen.keys.iter_mut().find(|key| key.hash == *hash).expect("a key to change");
                *key = Key {
                    hash: key.hash.clone(),
                    alias: key.alias.clone(),
                    team_id: key.team_id.clone(),
                    metadata: key.metadata.clone(),
                    ..Key::default()
                };
            }
            Action::ReportApiKey { alias, key } => {
                let stored = self.seen.secrets.iter().flat_map(|l| &l.stored).find(|s| s.connection.alias == alias.to_string());
                assert_eq!(stored.map(|s| s.connection.key.expose_secret()), Some(key.expose_secret()), "another key is shown as {alias}");
                assert!(self.seen.keys.iter().any(|live| live.hash == key_hash(key)), "{alias} is shown before it lives");
                let known = self.seen.api_keys.as_mut().expect("a server with keys");
                assert!(known.iter().all(|key| key.client_id != alias.to_string()), "{alias} is told twice");
                known.push(ApiKey { client_id: alias.to_string(), resource: Some(RESOURCE), ..ApiKey::default() });
            }
            Action::SetEndpoints(endpoints) => self.seen.resource.endpoints.clone_from(endpoints),
            Action::SubmitReport(report) => self.seen.resource.report.clone_from(report),
            Action::SetBackendMetadata(metadata) => self.seen.resource.backend_metadata.clone_from(metadata),
            Action::VerifyKey { alias, .. } => {
                assert!(
                    self.seen.keys.iter().any(|key| key.alias.as_deref() == Some(&alias.to_string())),
                    "{alias} is verified before it lives"
                );
            }
            Action::ReplaceKey { base, draft } => {
                self.minted += 1;
                let (name, created, key) = (base.connection.name.clone(), base.created, secret(self.minted));
                self.stored().retain(|s| s.connection.name != name);
                self.stored().push(Stored::imagined(Connection { name, ..Self::connection(draft, key) }, true, created));
            }
            Action::UpdateSecret { base, connection } => {
                let name = base.connection.name.clone();
                let created = base.created;
                self.stored().retain(|s| s.connection.name != name);
                self.stored().push(Stored::imagined((**connection).clone(), true, created));
            }
            Action::DeleteSecret(stored) => {
                let name = stored.connection.name.clone();
                self.stored().retain(|s| s.connection.name != name);
            }
            Action::DeleteBrokenSecret(_) => unreachable!("no broken Secrets in these worlds"),
            Action::DeleteTeam(_) => {
                self.seen.team = None;
                self.seen.keys.clear();
            }
        }
    }
}

prop_compose! {
    fn limits()(budget in proptest::option::of(0_u32..200), tpm in proptest::option::of(1_u64..5000), rpm in proptest::option::of(1_u64..500)) -> TeamLimits {
        TeamLimits { max_budget: budget.map(Decimal::from), tpm_limit: tpm, rpm_limit: rpm }
    }
}

fn names() -> impl Strategy<Value = BTreeSet<String>> {
    proptest::collection::btree_set(proptest::sample::select(&MODELS[..]).prop_map(str::to_owned), 0..4)
}

fn mark(owner: &str) -> Mark {
    Mark { owner: owner.into(), offering: OFFERING, resource: RESOURCE, project: None, customer: None }
}

prop_compose! {
    fn a_team()(limits in limits(), models in names(), blocked: bool, marked in 0..3_u8, duration in proptest::option::of(proptest::sample::select(&["1mo", "30d", "7d"][..])), foreign: bool, ending: bool) -> Team {
        let mut metadata = if marked > 0 { mark(OWNER).entries() } else { Map::new() };
        if foreign {
            metadata.insert("cost_centre".into(), json!("77"));
        }
        if ending {
            metadata.insert(TERMINATING_SINCE.into(), json!("2026-11-01T00:00:00Z"));
        }
        Team { team_id: team_id(RESOURCE), models: models.into_iter().collect(), max_budget: limits.max_budget, tpm_limit: limits.tpm_limit, rpm_limit: limits.rpm_limit,
            budget_duration: duration.map(str::to_owned), blocked, metadata, ..Team::default() }
    }
}

prop_compose! {
    /// Where a replacement may stand, also one that names a key of somebody else or none at all.
    fn a_rotation()(what in 0..4_u8, at_once: bool, stray in 0..4_u8, until in proptest::option::of(-900_i64..2000)) -> Rotation {
        match what {
            0 | 1 => Rotation::None,
            2 => Rotation::Wanted { at_once },
            _ => Rotation::Retiring { hash: format!("{stray:064}"), until: until.map(|seconds| now().checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap()) },
        }
    }
}

prop_compose! {
    /// A Secret, with its key alive at the gateway or not.
    fn a_secret()(project: bool, rotation in a_rotation(), number in 1_u32..4, n in 1_u32..1000, ready: bool, complete: bool, live: bool, name in 0..2_u8, models in names(), created in 0_i64..3) -> (Stored, bool) {
        let slot = if project { Slot::Project } else { Slot::Chat };
        let connection = Connection {
            slot, resource: RESOURCE, offering: OFFERING, project: None,
            name: format!("{}-{name}", slot.as_str()), alias: KeyAlias { resource: RESOURCE, slot, number }.to_string(), number,
            state: if ready { SecretState::Ready } else { SecretState::Pending },
            key: format!("sk-old-{n:08}").into(), base_url: "https://old.example.org/v1".into(), models: models.into_iter().collect(), embedder: None, order: None, rotation,
        };
        (Stored::imagined(connection, complete, Timestamp::from_second(created).ok()), live)
    }
}

prop_compose! {
    fn a_world()(
        team in proptest::option::of(a_team()),
        secrets in proptest::collection::vec(a_secret(), 0..5),
        stray in proptest::collection::vec((0..3_u8, 1_u32..4, any::<bool>(), any::<bool>()), 0..4),
        told in proptest::option::of(proptest::collection::vec(1_u32..4, 0..2)),
        has_backend_id: bool, paused: bool, unread: bool,
    ) -> Peers {
        let mut keys: Vec<Key> = Vec::new();
        let mut stored: Vec<Stored> = Vec::new();
        for (secret, live) in secrets {
            if stored.iter().any(|s| s.connection.name == secret.connection.name || s.connection.alias == secret.connection.alias
                // 256 random bits are never drawn twice.
                || key_hash(&s.connection.key) == key_hash(&secret.connection.key)) {
                continue;
            }
            if live && team.is_some() {
                let mut metadata = mark(OWNER).entries();
                metadata.insert("slot".into(), json!(secret.connection.slot.as_str()));
                keys.push(Key { hash: key_hash(&secret.connection.key), alias: Some(secret.connection.alias.clone()), team_id: Some(team_id(RESOURCE)), metadata, ..Key::default() });
            }
            stored.push(secret);
        }
        for (i, (whose, number, project, aliased)) in stray.into_iter().enumerate() {
            let slot = if project { Slot::Project } else { Slot::Chat };
            let alias = KeyAlias { resource: RESOURCE, slot, number }.to_string();
            let (alias, metadata) = match whose {
                0 => (alias, mark(OWNER).entries()),
                1 => (format!("hand-made-{i}"), Map::new()),
                _ => (format!("other-{i}"), mark("daedalus").entries()),
            };
            if team.is_some() && keys.iter().all(|k| k.alias.as_deref() != Some(&alias)) {
                keys.push(Key { hash: format!("{i:064}"), alias: aliased.then_some(alias), team_id: Some(team_id(RESOURCE)), metadata, ..Key::default() });
            }
        }
        let marked = team.as_ref().is_none_or(|team| Mark::owner_of(&team.metadata).is_some());
        let resource = Resource {
            uuid: RESOURCE, state: ResourceState::Ok, slug: "aurora-llm".into(), paused, offering: Some(OFFERING),
            // A team without a mark is ours only through the backend_id.
            backend_id: if has_backend_id || !marked { team_id(RESOURCE) } else { String::new() },
            ..Resource::default()
        };
        let api_keys = told.map(|numbers| numbers.into_iter().collect::<BTreeSet<_>>().into_iter().map(|number| ApiKey { client_id: KeyAlias { resource: RESOURCE, slot: Slot::Project, number }.to_string(), resource: Some(RESOURCE), ..ApiKey::default() }).collect());
        let secrets = (!unread || !stored.is_empty()).then_some(Listed { stored, broken: Vec::new() });
        Peers { seen: Observed { resource, team, keys, retired_aliases: Vec::new(), secrets, api_keys, mark_repairs: 0 }, minted: 0, foreign_writes: Vec::new() }
    }
}

fn access(limits: &TeamLimits, models: &BTreeSet<String>, blocked: bool) -> Access {
    Access { mark: mark(OWNER), limits: limits.clone(), models: Some(models.clone()), blocked, order: None, key_in_report: false }
}

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

/// The rules at the time when every old key has gone.
fn later<'a>(rules: &Rules<'a>) -> Rules<'a> {
    Rules { now: crate::clock::after(now(), GRACE), ..rules.clone() }
}

fn lines(actions: &[Action]) -> Vec<String> {
    actions.iter().map(ToString::to_string).collect()
}

/// Applies plans until nothing is left; how many it took.
fn converge(peers: &mut Peers, rules: &Rules<'_>, wanted: &Access) -> usize {
    for round in 0..8 {
        let plan = plan_access(rules, wanted, &peers.seen).expect("nothing foreign in the way");
        if plan.is_empty() && peers.seen.secrets.is_some() {
            return round;
        }
        peers.seen.secrets.get_or_insert_default();
        for action in &plan {
            peers.apply(action);
        }
    }
    panic!("no rest after eight rounds: {:?}", lines(&plan_access(rules, wanted, &peers.seen).unwrap()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn it_converges_then_plans_nothing_and_touches_nothing_foreign(
        mut peers in a_world(), limits in limits(), models in names(), blocked: bool, custom: bool, endpoints: bool, project_key: bool,
    ) {
        let site = Site::new();
        let rules = site.rules(custom, endpoints, project_key);
        let wanted = access(&limits, &models, blocked);
        let foreign: BTreeSet<String> = peers.seen.keys.iter().filter(|k| Mark::owner_of(&k.metadata) != Some(OWNER)).map(|k| k.hash.clone()).collect();
        let kept_entry = peers.seen.team.as_ref().and_then(|t| t.metadata.get("cost_centre").cloned());
        let rounds = converge(&mut peers, &rules, &wanted);
        prop_assert!(rounds <= 5, "{} rounds", rounds);
        // What was replaced is gone when its time is over.
        let rounds = converge(&mut peers, &later(&rules), &wanted);
        prop_assert!(rounds <= 2, "{} rounds", rounds);

        let seen = &peers.seen;
        let team = seen.team.as_ref().unwrap();
        prop_assert_eq!((team.max_budget, team.tpm_limit, team.rpm_limit, team.blocked), (limits.max_budget, limits.tpm_limit, limits.rpm_limit, blocked));
        prop_assert!(!team.models.is_empty(), "an empty list would allow everything");
        prop_assert_eq!(Mark::owner_of(&team.metadata), Some(OWNER));
        prop_assert!(!team.metadata.contains_key(TERMINATING_SINCE));
        prop_assert_eq!(team.metadata.get("cost_centre").cloned(), kept_entry);
        // One Secret per slot, ready, and its key alive; no other key of ours.
        let slots: &[Slot] = rules.slots();
        let secrets = &seen.secrets.as_ref().unwrap().stored;
        for slot in slots {
            let of_slot: Vec<&Stored> = secrets.iter().filter(|s| s.connection.slot == *slot).collect();
            prop_assert_eq!(of_slot.len(), 1);
            prop_assert_eq!(of_slot[0].connection.state, SecretState::Ready);
            prop_assert_eq!(&of_slot[0].connection.rotation, &Rotation::None);
            prop_assert!(seen.keys.iter().any(|k| k.hash == key_hash(&of_slot[0].connection.key)));
        }
        let ours = seen.keys.iter().filter(|k| Mark::owner_of(&k.metadata) == Some(OWNER));
        let served = ours.filter(|k| k.alias.as_deref().and_then(|a| KeyAlias::parse(RESOURCE, a)).is_none_or(|a| slots.contains(&a.slot)));
        prop_assert_eq!(served.count(), slots.len());
        if let (Some(known), true) = (&seen.api_keys, project_key) {
            let project = secrets.iter().find(|s| s.connection.slot == Slot::Project).unwrap();
            prop_assert!(known.iter().any(|k| k.client_id == project.connection.alias));
        }
        prop_assert!(peers.foreign_writes.is_empty());
        prop_assert!(foreign.iter().all(|hash| seen.keys.iter().any(|k| k.hash == *hash)));
    }

    #[test]
    fn a_key_is_replaced_by_the_next_and_serves_on_until_that_works_and_its_time_is_over(
        mut peers in a_world(), limits in limits(), models in names(), blocked: bool, custom: bool, project: bool, at_once: bool, stop in 0..20_usize,
    ) {
        let site = Site::new();
        let rules = site.rules(custom, true, true);
        let wanted = access(&limits, &models, blocked);
        converge(&mut peers, &rules, &wanted);
        converge(&mut peers, &later(&rules), &wanted);
        let slot = if project { Slot::Project } else { Slot::Chat };
        let of_slot = |peers: &Peers| peers.seen.secrets.as_ref().unwrap().stored.iter().find(|s| s.connection.slot == slot).unwrap().connection.clone();
        let old = of_slot(&peers);
        let lives = |peers: &Peers, key: &SecretString| peers.seen.keys.iter().any(|k| k.hash == key_hash(key));
        let told = peers.seen.api_keys.iter().flatten().map(|key| key.client_id.clone());
        let used: BTreeSet<String> = told.chain(peers.seen.keys.iter().filter_map(|key| key.alias.clone())).collect();
        let others: Vec<Key> = peers.seen.keys.iter().filter(|k| k.hash != key_hash(&old.key)).cloned().collect();
        for stored in peers.stored().iter_mut().filter(|s| s.connection.slot == slot) {
            let connection = Connection { rotation: Rotation::Wanted { at_once }, ..old.clone() };
            *stored = Stored::imagined(connection, true, stored.created);
        }
        // The process may end after any step; the next look goes on from there.
        let mut steps = 0;
        for _ in 0..8 {
            let plan = plan_access(&rules, &wanted, &peers.seen).unwrap();
            for action in &plan {
                if steps == stop {
                    steps += 1;
                    break;
                }
                steps += 1;
                peers.apply(action);
                let new = of_slot(&peers);
                let serves = lives(&peers, &new.key) && (new.state == SecretState::Ready || at_once);
                prop_assert!(lives(&peers, &old.key) || (at_once && serves), "the old key went before the new one worked: {:?}", lines(&plan));
            }
        }
        let new = of_slot(&peers);
        prop_assert!(new.number > old.number && !used.contains(&new.alias), "{} was used before: {used:?}", new.alias);
        prop_assert_eq!(new.state, SecretState::Ready);
        prop_assert!(lives(&peers, &new.key) && new.key.expose_secret() != old.key.expose_secret());
        prop_assert_eq!(lives(&peers, &old.key), !at_once);
        if let (Some(known), true) = (&peers.seen.api_keys, project) {
            prop_assert!(known.iter().any(|k| k.client_id == new.alias));
        }
        if !at_once {
            // Whatever stands on the Secret, the old key has its time and no more.
            let last = Rules { now: later(&rules).now.checked_sub(jiff::SignedDuration::from_secs(1)).unwrap(), ..rules.clone() };
            prop_assert!(plan_access(&last, &wanted, &peers.seen).unwrap().is_empty());
        }
        converge(&mut peers, &later(&rules), &wanted);
        prop_assert!(!lives(&peers, &old.key) && lives(&peers, &new.key));
        prop_assert_eq!(of_slot(&peers).rotation, Rotation::None);
        prop_assert!(others.iter().all(|key| peers.seen.keys.contains(key)), "another key was touched");
        prop_assert!(peers.foreign_writes.is_empty());
    }

    #[test]
    fn the_order_of_lists_does_not_matter(peers in a_world(), limits in limits(), models in names(), custom: bool) {
        let site = Site::new();
        let rules = site.rules(custom, true, true);
        let wanted = access(&limits, &models, false);
        let mut turned = peers.seen.clone();
        turned.keys.reverse();
        if let Some(listed) = &mut turned.secrets {
            listed.stored.reverse();
        }
        if let Some(known) = &mut turned.api_keys {
            known.reverse();
        }
        if let Some(team) = &mut turned.team {
            team.models.reverse();
        }
        let sorted = |seen: &Observed| {
            let mut lines = lines(&plan_access(&rules, &wanted, seen).unwrap());
            lines.sort();
            lines
        };
        prop_assert_eq!(sorted(&peers.seen), sorted(&turned));
    }

    #[test]
    fn what_is_foreign_is_never_planned_for(mut peers in a_world(), limits in limits(), how in 0..3_u8) {
        let site = Site::new();
        let rules = site.rules(true, true, true);
        match how {
            0 => peers.seen.resource.backend_id = "team-of-another-agent".into(),
            1 => {
                peers.seen.resource.backend_id = String::new();
                peers.seen.team = Some(Team { team_id: team_id(RESOURCE), ..Team::default() });
            }
            _ => peers.seen.team = Some(Team { team_id: team_id(RESOURCE), metadata: mark("daedalus").entries(), ..Team::default() }),
        }
        prop_assert!(plan_access(&rules, &access(&limits, &BTreeSet::new(), false), &peers.seen).is_err());
        let now = "2026-11-30T00:00:00Z".parse().unwrap();
        prop_assert!(plan_removal(OWNER, &peers.seen, now, Duration::from_secs(180)).is_err());
    }

    #[test]
    fn an_end_blocks_first_waits_the_drain_out_and_leaves_nothing(mut peers in a_world(), drain in 90_u64..400) {
        peers.seen.secrets.get_or_insert_default();
        let drain = Duration::from_secs(drain);
        let mut now: Timestamp = "2026-11-30T00:00:00Z".parse().unwrap();
        let had_team = peers.seen.team.is_some();
        let mut blocked_at = None;
        for _ in 0..8 {
            match plan_removal(OWNER, &peers.seen, now, drain).unwrap() {
                Removal::Block(actions) => {
                    blocked_at = Some(now);
                    actions.iter().for_each(|action| peers.apply(action));
                    prop_assert!(peers.seen.team.as_ref().unwrap().blocked);
                }
                Removal::Drain(until) => {
                    prop_assert!(until > now);
                    now = until;
                }
                Removal::Bill { then, since } => {
                    if let Some(team) = &peers.seen.team {
                        prop_assert!(team.blocked);
                        prop_assert!(now >= crate::clock::after(terminating_since(team).unwrap(), drain));
                    }
                    prop_assert!(since <= now);
                    if then.is_empty() {
                        break;
                    }
                    then.iter().for_each(|action| peers.apply(action));
                }
                Removal::Remove(actions) => actions.iter().for_each(|action| peers.apply(action)),
                Removal::Nothing => break,
            }
        }
        prop_assert!(peers.seen.team.is_none() && peers.seen.keys.is_empty() && peers.seen.secrets.unwrap().stored.is_empty());
        if let (true, Some(at)) = (had_team, blocked_at) {
            prop_assert!(now >= crate::clock::after(at, drain));
        }
    }
}

/// A resource without a team, with this `backend_id` and one Secret.
fn without_team(backend_id: &str) -> Observed {
    let resource = Resource { uuid: RESOURCE, state: ResourceState::Terminating, backend_id: backend_id.into(), ..Resource::default() };
    let draft = SecretDraft {
        alias: KeyAlias { resource: RESOURCE, slot: Slot::Chat, number: 1 },
        name: "chat-0".into(),
        offering: OFFERING,
        project: None,
        base_url: "https://llm.example.org/v1".into(),
        models: Vec::new(),
        embedder: None,
        order: None,
        rotation: Rotation::None,
    };
    let stored = vec![Stored::imagined(Peers::connection(&draft, secret(1)), true, None)];
    let secrets = Some(Listed { stored, broken: vec![Broken::imagined("project-0", RESOURCE, Slot::Project, 3)] });
    Observed { resource, team: None, keys: Vec::new(), retired_aliases: Vec::new(), secrets, api_keys: None, mark_repairs: 0 }
}

#[test]
fn what_a_team_used_that_somebody_removed_by_hand_is_billed_before_its_resource_ends() {
    let (now, drain) = (now(), Duration::from_secs(180));
    let sold = plan_removal(OWNER, &without_team(&team_id(RESOURCE)), now, drain).unwrap();
    assert!(matches!(&sold, Removal::Bill { since, then } if *since == now && then.len() == 2), "{sold:?}");
    let never_sold = plan_removal(OWNER, &without_team(""), now, drain).unwrap();
    assert!(matches!(&never_sold, Removal::Remove(actions) if actions.len() == 2), "{never_sold:?}");
    let nothing = Observed { secrets: Some(Listed::default()), ..without_team("") };
    assert!(matches!(plan_removal(OWNER, &nothing, now, drain).unwrap(), Removal::Nothing));
}

#[test]
fn a_time_of_blocking_that_is_yet_to_come_is_not_waited_for() {
    let (now, drain) = (now(), Duration::from_secs(180));
    let since = |at: Timestamp, blocked: bool| {
        let mut metadata = mark(OWNER).entries();
        metadata.insert(TERMINATING_SINCE.into(), json!(at.to_string()));
        let team = Team { team_id: team_id(RESOURCE), metadata, blocked, ..Team::default() };
        plan_removal(OWNER, &Observed { team: Some(team), ..without_team("") }, now, drain).unwrap()
    };
    assert!(matches!(since(now, true), Removal::Drain(until) if until == crate::clock::after(now, drain)));
    let second = jiff::SignedDuration::from_secs(1);
    assert!(matches!(since(now + second, true), Removal::Block(_)), "a clock was wrong: it is blocked anew, at a time that is true");
    assert!(matches!(since(now, false), Removal::Block(_)), "somebody let its calls through again");
    let drained = now - jiff::SignedDuration::from_secs(180);
    assert!(matches!(since(drained + second, true), Removal::Drain(until) if until == now + second));
    assert!(matches!(since(drained, true), Removal::Bill { since, .. } if since == drained));
}

#[test]
fn of_a_resource_that_waldur_shows_as_ended_only_what_is_ours_is_removed() {
    let orphan = |metadata: Map<String, Value>| {
        let team = Team { team_id: team_id(RESOURCE), metadata, ..Team::default() };
        let key = Key { hash: "h".into(), team_id: Some(team_id(RESOURCE)), ..Key::default() };
        lines(&plan_orphan(OWNER, &Observed { team: Some(team), keys: vec![key], ..without_team("") }))
    };
    let secrets = ["delete Secret chat-0", "delete Secret project-0, which is of no use: it has no key"].map(str::to_owned);
    let team = ["delete key without alias (h…), which no Secret holds".to_owned(), format!("delete team {}", team_id(RESOURCE))];
    assert_eq!(orphan(mark(OWNER).entries()), [&team[..], &secrets].concat());
    let of_another = Mark { resource: Uuid::from_u128(7), ..mark(OWNER) };
    for foreign in [Map::new(), mark("daedalus").entries(), of_another.entries()] {
        assert_eq!(orphan(foreign), secrets, "a team that is not ours stays, with its keys");
    }
    assert_eq!(lines(&plan_orphan(OWNER, &without_team(""))), secrets);
    // The gateway registers keys for a team that is not there.
    let key_of = |metadata| Key { hash: "h".into(), team_id: Some(team_id(RESOURCE)), metadata, ..Key::default() };
    let left = |metadata| lines(&plan_orphan(OWNER, &Observed { keys: vec![key_of(metadata)], ..without_team("") }));
    assert_eq!(left(mark(OWNER).entries()), [&team[..1], &secrets].concat());
    assert_eq!((left(Map::new()), left(mark("daedalus").entries())), (secrets.to_vec(), secrets.to_vec()));
}

#[test]
fn an_operator_reads_of_every_cap_what_it_becomes() {
    let site = Site::new();
    let rules = site.rules(true, true, true);
    let limits = |budget: u32, tpm: Option<u64>| TeamLimits { max_budget: Some(budget.into()), tpm_limit: tpm, rpm_limit: None };
    let wanted = |limits: &TeamLimits, blocked: bool| access(limits, &BTreeSet::from(["kestrel-8b".to_owned()]), blocked);
    let mut peers = Peers { seen: without_team(""), minted: 1, foreign_writes: Vec::new() };
    peers.seen.secrets.as_mut().unwrap().broken.clear();
    // What is said of the team until nothing is left to do.
    let tell = |peers: &mut Peers, wanted: &Access| {
        let mut said = Vec::new();
        for _ in 0..4 {
            let plan = plan_access(&rules, wanted, &peers.seen).unwrap();
            said.extend(lines(&plan).into_iter().filter(|line| line.contains(" team ")));
            plan.iter().for_each(|action| peers.apply(action));
        }
        said
    };
    let id = team_id(RESOURCE);
    let caps = "models kestrel-8b; max_budget 50; tpm_limit 1000; rpm_limit none; blocked false";
    assert_eq!(tell(&mut peers, &wanted(&limits(50, Some(1000)), false)), [format!("create team {id} ({caps})")]);
    let caps = "max_budget → 80; tpm_limit → none; blocked → true";
    assert_eq!(tell(&mut peers, &wanted(&limits(80, None), true)), [format!("update team {id}: {caps}")]);
    let team = peers.seen.team.as_mut().unwrap();
    team.metadata.remove("owner");
    team.models.clear();
    let restored = "models → kestrel-8b; metadata (ours restored, foreign entries kept)";
    assert_eq!(tell(&mut peers, &wanted(&limits(80, None), true)), [format!("update team {id}: {restored}")]);
}

#[test]
fn an_obstacle_says_what_is_in_the_way_and_whether_another_try_can_help() {
    let resource = RESOURCE;
    let name = RESOURCE.simple();
    for (obstacle, condition, is_final, said) in [
        (
            Obstacle::ForeignBackend { resource, backend_id: "x".into() },
            "foreign-backend-id",
            false,
            format!("resource {name} has the backend_id \"x\", which another agent gave it; it is left alone"),
        ),
        (
            Obstacle::ForeignTeam { resource, owner: None },
            "foreign-team",
            false,
            format!("team {name} exists and is not managed by this agent; `llm-access-agent adopt {name}` takes it over"),
        ),
        (
            Obstacle::ForeignTeam { resource, owner: Some("daedalus".into()) },
            "foreign-team",
            false,
            format!("team {name} belongs to the agent of \"daedalus\"; it is left alone"),
        ),
        (
            Obstacle::ForeignSecret { name: "chat".into() },
            "foreign-secret",
            false,
            "a Secret chat exists and is not managed by this agent; move it away or give it our labels".into(),
        ),
        (Obstacle::TakenSecret("taken".into()), "taken-secret", false, "taken".into()),
        (Obstacle::Limits("a rate of 0".into()), "limits-not-servable", true, "the limits cannot be served: a rate of 0".into()),
        (Obstacle::NoModels, "no-models", true, "nothing says which models are meant: set the option `models` of the resource".into()),
    ] {
        assert_eq!((obstacle.condition(), obstacle.is_final(), obstacle.to_string()), (condition, is_final, said));
    }
}

#[test]
fn a_team_without_a_mark_is_ours_only_where_waldur_names_it() {
    let team = |metadata: Map<String, Value>| Some(Team { team_id: team_id(RESOURCE), metadata, ..Team::default() });
    let whose = |backend_id: &str, team: Option<Team>| Observed { team, ..without_team(backend_id) }.ownership(OWNER);
    let id = team_id(RESOURCE);
    assert_eq!(whose(&id, None), Ownership::Absent);
    assert_eq!(whose("", team(mark(OWNER).entries())), Ownership::Ours);
    assert_eq!(whose(&id, team(Map::new())), Ownership::Ours);
    assert_eq!(whose("", team(Map::new())), Ownership::Foreign(None));
    assert_eq!(whose(&id, team(mark("daedalus").entries())), Ownership::Foreign(Some("daedalus".into())));
    // The id in Waldur's way of writing it, or nothing, is no other agent's; any other text is.
    for (backend_id, foreign) in [("", false), (" ", false), (id.as_str(), false), (&RESOURCE.to_string(), false), ("team-7", true)] {
        assert_eq!(foreign_backend(&without_team(backend_id).resource).is_some(), foreign, "{backend_id:?}");
    }
    assert!(foreign_backend(&without_team(&team_id(OFFERING)).resource).is_some());
}

#[test]
fn a_project_may_spend_what_was_ordered_and_less_while_it_is_paused_or_scaled_down() {
    fn decimals(pairs: &[(&str, u32)]) -> waldur_client::Limits {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), Decimal::from(*value))).collect()
    }
    let caps = |budget: u32, tpm_limit, rpm_limit| TeamLimits { max_budget: Some(budget.into()), tpm_limit, rpm_limit };
    let resource = Resource { limits: decimals(&[("max_budget", 50), ("tpm_limit", 1000)]), ..without_team("").resource };
    let mut site = Site::new();
    let wants = |site: &Site, resource: &Resource, order: Option<&Order>| {
        let wanted = wanted_access(&site.rules(true, true, true), resource, order, &[]).unwrap();
        (wanted.limits, wanted.blocked)
    };
    assert_eq!(wants(&site, &resource, None), (caps(50, Some(1000), None), false));
    for (kind, limits, expected) in [
        (OrderKind::Update, vec![("max_budget", 80)], caps(80, None, None)),
        (OrderKind::Update, vec![], caps(50, Some(1000), None)),
        // The end of a resource raises nothing.
        (OrderKind::Terminate, vec![("max_budget", 80)], caps(50, Some(1000), None)),
    ] {
        let order = Order { kind, limits: decimals(&limits), ..Order::default() };
        assert_eq!(wants(&site, &resource, Some(&order)), (expected, false), "{order:?}");
    }
    let with = |limits: &[(&str, u32)]| Resource { limits: decimals(limits), ..resource.clone() };
    assert_eq!(wants(&site, &with(&[("max_budget", 0)]), None), (caps(0, None, None), true), "the gateway lets the first call through");
    let refused = wanted_access(&site.rules(true, true, true), &with(&[("tpm_limit", 0), ("rpm_limit", 0)]), None, &[]);
    let Err(Obstacle::Limits(said)) = refused else { panic!("{refused:?}") };
    assert!(said.starts_with("tpm_limit is 0 ") && said.contains("; rpm_limit is 0 "), "{said}");
    // Paused, scaled down, or both; with what a scaled-down resource may use.
    let reduced = TeamLimits { max_budget: Some(10.into()), tpm_limit: Some(5000), rpm_limit: Some(5) };
    let nothing = TeamLimits { max_budget: Some(0.into()), ..TeamLimits::default() };
    let full = caps(50, Some(1000), None);
    for (what, paused, downscaled, expected) in [
        (OnDownscale::Block, false, false, (full.clone(), false)),
        (OnDownscale::Block, true, false, (full.clone(), true)),
        (OnDownscale::Block, false, true, (full.clone(), true)),
        (OnDownscale::Block, true, true, (full.clone(), true)),
        (OnDownscale::Reduce(reduced.clone()), false, false, (full.clone(), false)),
        (OnDownscale::Reduce(reduced.clone()), false, true, (caps(10, Some(1000), Some(5)), false)),
        (OnDownscale::Reduce(reduced), true, true, (caps(10, Some(1000), Some(5)), true)),
        (OnDownscale::Reduce(nothing), false, true, (caps(0, Some(1000), None), true)),
    ] {
        site.offering.on_downscale = what;
        let resource = Resource { paused, downscaled, ..resource.clone() };
        assert_eq!(wants(&site, &resource, None), expected, "{:?} {paused} {downscaled}", site.offering.on_downscale);
    }
    for delivery in [ApiKeyDelivery::Report, ApiKeyDelivery::Hide] {
        let shown = delivery == ApiKeyDelivery::Report;
        site.offering.delivery.api_key_on_old_servers = delivery;
        assert_eq!(wanted_access(&site.rules(true, true, true), &resource, None, &[]).unwrap().key_in_report, shown);
    }
}

#[test]
fn a_secret_that_lost_its_key_gets_a_new_one_in_its_place_under_a_number_that_was_never_used() {
    let site = Site::new();
    let wanted = access(&TeamLimits::default(), &BTreeSet::from(["kestrel-8b".to_owned()]), false);
    let plan = plan_access(&site.rules(true, true, true), &wanted, &without_team("")).unwrap();
    let [Action::ReplaceSecret { broken, draft }] = plan.as_slice() else { panic!("{:?}", lines(&plan)) };
    assert_eq!((broken.name.as_str(), draft.alias.slot, draft.alias.number), ("project-0", Slot::Project, 4));
    // That of the other slot says nothing about this one.
    let mut seen = without_team("");
    let listed = seen.secrets.as_mut().unwrap();
    listed.stored.clear();
    let plan = plan_access(&site.rules(true, true, true), &wanted, &seen).unwrap();
    let [Action::StoreSecret(chat), Action::ReplaceSecret { draft: project, .. }] = plan.as_slice() else { panic!("{:?}", lines(&plan)) };
    assert_eq!((chat.alias.slot, chat.alias.number, project.alias.slot), (Slot::Chat, 1, Slot::Project));
}

/// A resource whose chat Secret holds its second key, and what is said of the first, which lives.
fn after_a_replacement(rotation: Rotation, state: SecretState, new_lives: bool) -> Observed {
    let mut seen = without_team(&team_id(RESOURCE));
    let alias = |number| KeyAlias { resource: RESOURCE, slot: Slot::Chat, number }.to_string();
    let base = seen.secrets.as_ref().unwrap().stored[0].connection.clone();
    let connection = Connection { number: 2, alias: alias(2), rotation, state, ..base };
    let mut metadata = mark(OWNER).entries();
    metadata.insert("slot".into(), json!("chat"));
    let live = |hash: String, number: u32| Key {
        hash,
        alias: Some(alias(number)),
        team_id: Some(team_id(RESOURCE)),
        metadata: metadata.clone(),
        ..Key::default()
    };
    seen.keys = vec![live(format!("{:064}", 1), 1)];
    seen.keys.extend(new_lives.then(|| live(key_hash(&connection.key), 2)));
    seen.team = Some(Team { team_id: team_id(RESOURCE), metadata: mark(OWNER).entries(), ..Team::default() });
    seen.secrets = Some(Listed { stored: vec![Stored::imagined(connection, true, None)], broken: Vec::new() });
    seen
}

#[test]
fn a_key_that_is_being_replaced_serves_on_until_the_next_works_however_long_that_takes() {
    let site = Site::new();
    let wanted = access(&TeamLimits::default(), &BTreeSet::from(["kestrel-8b".to_owned()]), false);
    let old = format!("{:064}", 1);
    let at = |seconds: i64| Some(now() + jiff::SignedDuration::from_secs(seconds));
    for (until, state, new_lives, deleted) in [
        (at(1), SecretState::Ready, true, false),
        (at(0), SecretState::Ready, true, true),
        (at(-60), SecretState::Ready, true, true),
        // Nobody has seen the new key work, or it was lost.
        (at(-60), SecretState::Pending, true, false),
        (at(-60), SecretState::Ready, false, false),
    ] {
        let seen = after_a_replacement(Rotation::Retiring { hash: old.clone(), until }, state, new_lives);
        let plan = plan_access(&site.rules(true, true, false), &wanted, &seen).unwrap();
        let goes = plan.iter().any(|action| matches!(action, Action::DeleteKey { hash, .. } if *hash == old));
        assert_eq!(goes, deleted, "{until:?} {state:?} {new_lives}: {:?}", lines(&plan));
    }
    // A gateway that makes the keys itself has to make one more; the first still has its time.
    let rotation = Rotation::Retiring { hash: old, until: at(600) };
    let seen = after_a_replacement(rotation.clone(), SecretState::Ready, false);
    let plan = plan_access(&site.rules(false, true, false), &wanted, &seen).unwrap();
    let minted = plan.iter().find_map(|action| match action {
        Action::MintKey { draft, .. } => Some(&draft.rotation),
        _ => None,
    });
    assert_eq!(minted, Some(&rotation), "{:?}", lines(&plan));
    assert!(!plan.iter().any(|action| matches!(action, Action::DeleteKey { .. })), "{:?}", lines(&plan));
}

#[test]
fn a_mark_that_somebody_keeps_taking_away_is_not_fought_over() {
    let site = Site::new();
    let wanted = access(&TeamLimits::default(), &BTreeSet::from(["kestrel-8b".to_owned()]), false);
    for (repairs, restored) in [(0, true), (1, true), (2, false), (3, false)] {
        let mut seen = after_a_replacement(Rotation::None, SecretState::Ready, true);
        seen.team.as_mut().unwrap().metadata.remove("owner");
        seen.mark_repairs = repairs;
        let plan = plan_access(&site.rules(true, true, false), &wanted, &seen).unwrap();
        let patched = plan.iter().any(|action| matches!(action, Action::UpdateTeam { patch, .. } if patch.metadata.is_some()));
        assert_eq!(patched, restored, "{repairs}: {:?}", lines(&plan));
    }
}

#[test]
fn a_key_is_proven_wherever_nobody_has_seen_it_work() {
    let site = Site::new();
    let models = BTreeSet::from(["kestrel-8b".to_owned()]);
    for (state, lives, blocked, verified) in [
        (SecretState::Ready, true, false, false),
        (SecretState::Ready, false, false, true),
        (SecretState::Pending, true, false, true),
        (SecretState::Pending, false, false, true),
        // A blocked team would refuse it.
        (SecretState::Pending, false, true, false),
    ] {
        let seen = after_a_replacement(Rotation::None, state, lives);
        let wanted = access(&TeamLimits::default(), &models, blocked);
        let plan = plan_access(&site.rules(true, true, false), &wanted, &seen).unwrap();
        assert_eq!(plan.iter().any(|action| matches!(action, Action::VerifyKey { .. })), verified, "{state:?} {lives} {blocked}");
        assert_eq!(plan.iter().any(|action| matches!(action, Action::RegisterKey { .. })), !lives, "{state:?} {lives} {blocked}");
    }
    // Where the gateway makes the keys: a number that no peer has seen is used after all, one that served never again.
    for (state, number) in [(SecretState::Pending, 2), (SecretState::Ready, 3)] {
        let seen = after_a_replacement(Rotation::None, state, false);
        let wanted = access(&TeamLimits::default(), &models, false);
        let plan = plan_access(&site.rules(false, true, false), &wanted, &seen).unwrap();
        let minted: Vec<u32> = plan
            .iter()
            .filter_map(|action| match action {
                Action::MintKey { draft, .. } => Some(draft.alias.number),
                _ => None,
            })
            .collect();
        assert_eq!(minted, [number], "{state:?}");
        assert!(!plan.iter().any(|action| matches!(action, Action::UpdateSecret { .. })), "nothing is ready before that key is there");
    }
}

#[test]
fn a_customer_finds_the_address_and_the_ids_in_waldur_and_a_key_only_where_that_is_meant() {
    let site = Site::new();
    let models = BTreeSet::from(["kestrel-8b".to_owned()]);
    let limits = TeamLimits { max_budget: Some(50.into()), ..TeamLimits::default() };
    let mut peers = Peers { seen: without_team(""), minted: 1, foreign_writes: Vec::new() };
    peers.seen.secrets.as_mut().unwrap().broken.clear();
    let endpoint = |name: &str, url: &str| Endpoint { name: name.into(), url: url.into() };
    peers.seen.resource.endpoints = vec![endpoint("Docs", "https://docs.example.org"), endpoint(API, "https://old.example.org")];
    peers.seen.resource.backend_metadata = serde_json::from_value(json!({"site": "hel", "llm_access": {"unbilled": ["2026-10"]}})).unwrap();
    converge(&mut peers, &site.rules(true, true, true), &access(&limits, &models, false));
    let seen = &peers.seen.resource;
    assert_eq!(seen.endpoints, [endpoint("Docs", "https://docs.example.org"), endpoint(API, "https://llm.example.org/v1")]);
    assert!(seen.report.is_empty());
    let keys = [Slot::Project, Slot::Chat].map(|slot| KeyAlias { resource: RESOURCE, slot, number: 1 }.to_string());
    let ids = json!({"team_id": team_id(RESOURCE), "project_key": keys[0], "chat_key": keys[1], "unbilled": ["2026-10"]});
    assert_eq!(Value::Object(seen.backend_metadata.clone()), json!({"site": "hel", "llm_access": ids}), "what is noted beside stays");
    // A server without endpoints has a report.
    let key_of = |peers: &Peers, slot: Slot| {
        let stored = &peers.seen.secrets.as_ref().unwrap().stored;
        stored.iter().find(|s| s.connection.slot == slot).unwrap().connection.key.expose_secret().to_owned()
    };
    let (project, chat) = (key_of(&peers, Slot::Project), key_of(&peers, Slot::Chat));
    let ask = "Ask the operators of this service for the key of this resource.";
    for (key_in_report, key) in [(false, ask), (true, project.as_str())] {
        let wanted = Access { key_in_report, ..access(&limits, &models, false) };
        converge(&mut peers, &site.rules(true, false, true), &wanted);
        let report: Vec<(&str, &str)> = peers.seen.resource.report.iter().map(|s| (s.header.as_str(), s.body.as_str())).collect();
        let budget = "50 EUR per calendar month, counted anew on the 1st (UTC)";
        assert_eq!(report, [(API, "https://llm.example.org/v1"), ("Models", "kestrel-8b"), ("Budget", budget), ("API key", key)]);
        assert!(!report.iter().any(|(_, body)| body.contains(&chat)));
    }
    let nothing = access(&TeamLimits::default(), &BTreeSet::new(), false);
    converge(&mut peers, &site.rules(true, false, true), &nothing);
    let said: Vec<&str> = peers.seen.resource.report.iter().map(|s| s.body.as_str()).collect();
    assert_eq!(said[1..], ["none", "no limit", ask]);
}

#[test]
fn a_connection_says_what_is_true_now_and_is_written_only_where_it_does_not() {
    let mut site = Site::new();
    site.offering.always_include.insert(0, "kestrel-8b".into());
    let rules = site.rules(true, true, false);
    let models = ["kestrel-8b", "embed"].map(str::to_owned);
    let order = Some(Uuid::from_u128(7));
    let wanted = Access { order, ..access(&TeamLimits::default(), &models.into_iter().collect(), false) };
    let wanted = Access { mark: Mark { project: Some(Uuid::from_u128(8)), ..wanted.mark.clone() }, ..wanted };
    let written = |seen: &Observed, wanted: &Access| {
        let plan = plan_access(&rules, wanted, seen).unwrap();
        plan.into_iter().find_map(|action| match action {
            Action::UpdateSecret { connection, .. } => Some(*connection),
            _ => None,
        })
    };
    let mut seen = after_a_replacement(Rotation::None, SecretState::Pending, true);
    let stale = &mut seen.secrets.as_mut().unwrap().stored[0].connection;
    stale.offering = Uuid::from_u128(9);
    let now = written(&seen, &wanted).unwrap();
    assert_eq!((now.state, now.base_url.as_str(), now.order), (SecretState::Ready, "http://litellm:4000/v1", order));
    assert_eq!((now.offering, now.project), (OFFERING, Some(Uuid::from_u128(8))));
    assert_eq!((now.models.join(" "), now.embedder.as_deref()), ("embed kestrel-8b".into(), Some("embed")));
    let with = |connection: Connection, complete: bool| {
        let stored = vec![Stored::imagined(connection, complete, None)];
        Observed { secrets: Some(Listed { stored, broken: Vec::new() }), ..seen.clone() }
    };
    assert_eq!(written(&with(now.clone(), true), &wanted).map(|c| c.name), None);
    assert!(written(&with(now.clone(), false), &wanted).is_some(), "something of it is missing");
    // Which order came last is no reason to write.
    let later = Access { order: Some(Uuid::from_u128(77)), ..wanted.clone() };
    assert!(written(&with(now.clone(), true), &later).is_none());
    // Retrieval needs a model that the team may call.
    let less = Access { models: Some(BTreeSet::from(["kestrel-8b".to_owned()])), ..wanted.clone() };
    assert_eq!(written(&with(now.clone(), true), &less).unwrap().embedder, None);
    // A team that may call nothing has an empty list there, not the gateway's word for it.
    let none = Access { models: Some(BTreeSet::new()), ..wanted };
    assert!(written(&with(now, true), &none).unwrap().models.is_empty());
}
