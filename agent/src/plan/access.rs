//! The steps from what is there to a resource that works: the same for a create, an update, a restore and a repair.

use std::collections::BTreeSet;

use litellm_client::{Change, Key, Models, NewTeam, Team, TeamPatch, key_hash};
use serde_json::{Map, Value, json};
use waldur_client::{ApiKeyState, Endpoint, Order, OrderKind, ReportSection, Resource};

use super::evaluate::new_options;
use super::{Access, Action, Observed, Obstacle, Rules, SecretDraft, TERMINATING_SINCE};
use crate::clock::after;
use crate::config::{ApiKeyDelivery, OnDownscale};
use crate::domain::{KeyAlias, Mark, ModelRequest, TeamLimits, effective_limits, resolve_models, team_alias, team_id};
use crate::secrets::{Broken, Connection, Listed, Rotation, SecretState, Slot, Stored, secret_name};

/// One calendar month: the gateway resets the spend counter on the first.
const BUDGET_DURATION: &str = "1mo";

/// The name under which customers see the gateway's address, as an endpoint or in the report.
pub(crate) const API: &str = "OpenAI API";

/// How often the agent restores its mark on one team within an hour before it says that somebody else writes there too.
const MARK_REPAIRS: u32 = 2;

/// What a resource is to look like, from Waldur's view of it and the order being worked on. `held` are the models its team
/// has now.
///
/// # Errors
/// Limits that cannot be served.
pub fn wanted_access(rules: &Rules<'_>, resource: &Resource, order: Option<&Order>, held: &[String]) -> Result<Access, Obstacle> {
    let ordered_limits = order
        .filter(|order| !order.limits.is_empty() && order.kind != OrderKind::Terminate)
        .map_or(&resource.limits, |order| &order.limits);
    let mut limits = effective_limits(ordered_limits, rules.catalogue.max_budget, &rules.offering.limits)
        .map_err(|problems| Obstacle::Limits(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))?;
    let mut blocked = resource.paused;
    match &rules.offering.on_downscale {
        OnDownscale::Block => blocked |= resource.downscaled,
        OnDownscale::Reduce(reduced) if resource.downscaled => limits = tighter(&limits, reduced),
        OnDownscale::Reduce(_) => {}
    }
    blocked |= limits.blocks();
    let attributes = order.map(|order| &order.attributes);
    let places = order.and_then(new_options).into_iter().chain([&resource.options]).chain(attributes).chain([&resource.attributes]);
    let request = ModelRequest::read(places);
    // What a file that cannot be believed says takes no model from a team that works, and gives it none.
    let left_alone = order.is_none() && !held.is_empty() && !rules.catalogue.may_be_acted_upon();
    Ok(Access {
        mark: Mark {
            owner: rules.owner.to_owned(),
            offering: rules.offering.uuid,
            resource: resource.uuid,
            project: resource.project,
            customer: resource.customer,
        },
        limits,
        models: if left_alone {
            None
        } else {
            resolve_models(&request, rules.catalogue.orderable(), &rules.offering.always_include, held, &|name| {
                rules.catalogue.is_stale(name, &rules.offering.always_include)
            })
        },
        blocked,
        order: order.map(|order| order.uuid),
        key_in_report: rules.offering.delivery.api_key_on_old_servers == ApiKeyDelivery::Report,
    })
}

/// Each cap the smaller of the two; "none" is the largest.
fn tighter(a: &TeamLimits, b: &TeamLimits) -> TeamLimits {
    fn least<T: Ord + Copy>(a: Option<T>, b: Option<T>) -> Option<T> {
        a.into_iter().chain(b).min()
    }
    TeamLimits {
        max_budget: least(a.max_budget, b.max_budget),
        tpm_limit: least(a.tpm_limit, b.tpm_limit),
        rpm_limit: least(a.rpm_limit, b.rpm_limit),
    }
}

/// What is left to do until the resource is as wanted; empty when nothing is.
///
/// While a Secret is missing the plan is only to store it: it must be read back before its key is registered anywhere.
///
/// # Errors
/// What only a person can resolve; then nothing is touched.
pub fn plan_access(rules: &Rules<'_>, wanted: &Access, seen: &Observed) -> Result<Vec<Action>, Obstacle> {
    if let Some(obstacle) = seen.foreign(rules.owner) {
        return Err(obstacle);
    }
    let team_models = desired_models(rules, wanted, seen)?;
    let Some(listed) = &seen.secrets else {
        // Not read yet: store what is missing (a repeat finds it already there), then read.
        let slots = rules.slots().iter().filter(|_| rules.custom_keys);
        return Ok(slots.map(|slot| Action::StoreSecret(draft(rules, wanted, seen, *slot, &team_models))).collect());
    };
    let slots: Vec<Chosen<'_>> = rules.slots().iter().map(|slot| Chosen::among(&listed.stored, *slot, seen)).collect();
    if rules.custom_keys {
        let missing = slots.iter().filter(|chosen| chosen.secret.is_none());
        let store: Vec<Action> =
            missing.map(|chosen| store_secret(listed, draft(rules, wanted, seen, chosen.slot, &team_models))).collect();
        if !store.is_empty() {
            return Ok(store);
        }
        // As a new Secret, a new key is read back before anything else is done with it.
        let replace: Vec<Action> = slots.iter().filter_map(|chosen| replace_key(rules, wanted, seen, chosen, &team_models)).collect();
        if !replace.is_empty() {
            return Ok(replace);
        }
    }

    let mut actions = Vec::new();
    match &seen.team {
        None => actions.push(Action::CreateTeam(new_team(wanted, seen, &team_models))),
        Some(team) => {
            let patch = team_patch(wanted, team, &team_models, seen.mark_repairs);
            if !patch.is_empty() {
                actions.push(Action::UpdateTeam { team: team.team_id.clone(), patch });
            }
        }
    }
    let id = team_id(wanted.mark.resource);
    if seen.resource.backend_id != id {
        actions.push(Action::SetBackendId(id));
    }
    plan_keys(rules, wanted, seen, &slots, &team_models, &mut actions);
    plan_waldur(rules, wanted, seen, &slots, &team_models, &mut actions);
    plan_secrets(rules, wanted, &slots, &team_models, &mut actions);
    actions.extend(listed.broken.iter().map(|broken| Action::DeleteBrokenSecret(Box::new(broken.clone()))));
    Ok(actions)
}

/// A new Secret, in the place of one that lost its key where there is such a one.
fn store_secret(listed: &Listed, draft: SecretDraft) -> Action {
    let broken: Option<&Broken> = listed.broken.iter().find(|broken| broken.slot == Some(draft.alias.slot));
    match broken {
        Some(broken) => Action::ReplaceSecret { broken: Box::new(broken.clone()), draft },
        None => Action::StoreSecret(draft),
    }
}

/// The next key in the place of one that is to be replaced; nothing where none is.
fn replace_key(rules: &Rules<'_>, wanted: &Access, seen: &Observed, chosen: &Chosen<'_>, models: &Models) -> Option<Action> {
    let base = chosen.secret.filter(|_| chosen.is_replaced())?;
    let draft = SecretDraft { rotation: chosen.after_replacement(), ..draft(rules, wanted, seen, chosen.slot, models) };
    Some(Action::ReplaceKey { base: Box::new(base.clone()), draft })
}

/// The Secret that counts for one slot, and the others that are in its way.
struct Chosen<'a> {
    slot: Slot,
    secret: Option<&'a Stored>,
    surplus: Vec<&'a Stored>,
    /// The live key at the gateway that this Secret holds.
    key: Option<&'a Key>,
    /// Waldur shows the key as deleted, as it does once a resource ends. A resource that was restored before its end was noticed
    /// still has that key, and Waldur takes no deleted one back.
    is_over: bool,
}

impl<'a> Chosen<'a> {
    /// The one whose key lives at the gateway, else the oldest; a second one can only come from a crash while a slug changed.
    fn among(stored: &'a [Stored], slot: Slot, seen: &'a Observed) -> Self {
        let live = |secret: &Stored| {
            let hash = key_hash(&secret.connection.key);
            seen.keys.iter().find(|key| key.hash == hash)
        };
        let mut candidates: Vec<&Stored> = stored.iter().filter(|s| s.connection.slot == slot).collect();
        candidates.sort_by_key(|s| (live(s).is_none(), s.created.is_none(), s.created, s.connection.name.clone()));
        let secret = candidates.first().copied();
        let is_over = secret.is_some_and(|secret| {
            let id = secret.connection.alias.as_str();
            seen.api_keys.iter().flatten().any(|known| known.client_id == id && known.state == ApiKeyState::Deleted)
        });
        Self { slot, secret, surplus: candidates.into_iter().skip(1).collect(), key: secret.and_then(live), is_over }
    }

    fn alias(&self, resource: uuid::Uuid) -> Option<KeyAlias> {
        self.secret.map(|s| KeyAlias { resource, slot: self.slot, number: s.connection.number })
    }

    /// Whether another key is to take the place of the one in the Secret.
    fn is_replaced(&self) -> bool {
        self.is_over || self.secret.is_some_and(|secret| matches!(secret.connection.rotation, Rotation::Wanted { .. }))
    }

    /// What a Secret says about its old key once it holds a new one.
    fn after_replacement(&self) -> Rotation {
        match (self.secret.map(|secret| &secret.connection.rotation), self.key) {
            (Some(Rotation::Wanted { at_once: false }), Some(key)) => Rotation::Retiring { hash: key.hash.clone(), until: None },
            (Some(Rotation::Retiring { hash, until }), _) => Rotation::Retiring { hash: hash.clone(), until: *until },
            _ => Rotation::None,
        }
    }

    /// Where the replacement of its key stands once the key in the Secret works: from then on the old one has its time, and
    /// no more than that, whatever stands on the Secret.
    fn progress(&self, rules: &Rules<'_>) -> Rotation {
        match self.secret.map(|secret| &secret.connection.rotation) {
            Some(Rotation::Retiring { hash, until }) => {
                let most = after(rules.now, rules.grace);
                let until = until.map_or(most, |until| until.min(most));
                if until > rules.now { Rotation::Retiring { hash: hash.clone(), until: Some(until) } } else { Rotation::None }
            }
            Some(Rotation::Wanted { at_once }) => Rotation::Wanted { at_once: *at_once },
            Some(Rotation::None) | None => Rotation::None,
        }
    }

    /// Whether a key, an earlier one of this slot, still serves beside the one in the Secret. It does in any case until that
    /// one works.
    fn retires(&self, key: &Key, resource: uuid::Uuid, rules: &Rules<'_>) -> bool {
        let Some(secret) = self.secret else { return false };
        let Rotation::Retiring { hash, .. } = &secret.connection.rotation else { return false };
        let earlier = key
            .alias
            .as_deref()
            .and_then(|alias| KeyAlias::parse(resource, alias))
            .is_some_and(|alias| alias.slot == self.slot && alias.number < secret.connection.number);
        earlier
            && *hash == key.hash
            && (secret.connection.state == SecretState::Pending || self.key.is_none() || self.progress(rules) != Rotation::None)
    }
}

fn desired_models(rules: &Rules<'_>, wanted: &Access, seen: &Observed) -> Result<Models, Obstacle> {
    match (&wanted.models, &seen.team) {
        (Some(models), _) => Ok(Models::new(models.iter().cloned())),
        (None, Some(team)) => Ok(Models::new(team.models.iter().cloned().chain(rules.offering.always_include.iter().cloned()))),
        (None, None) => Err(Obstacle::NoModels),
    }
}

fn new_team(wanted: &Access, seen: &Observed, models: &Models) -> NewTeam {
    NewTeam {
        team_id: team_id(wanted.mark.resource),
        team_alias: team_alias(&seen.resource.slug, wanted.mark.resource),
        models: models.clone(),
        max_budget: wanted.limits.max_budget,
        budget_duration: Some(BUDGET_DURATION.into()),
        tpm_limit: wanted.limits.tpm_limit,
        rpm_limit: wanted.limits.rpm_limit,
        blocked: wanted.blocked,
        metadata: wanted.mark.entries(),
    }
}

fn team_patch(wanted: &Access, team: &Team, models: &Models, mark_repairs: u32) -> TeamPatch {
    fn cap<T: PartialEq + Copy>(wanted: Option<T>, seen: Option<T>) -> Change<T> {
        match wanted {
            _ if wanted == seen => Change::Keep,
            None => Change::Clear,
            Some(value) => Change::Set(value),
        }
    }
    let TeamLimits { max_budget, tpm_limit, rpm_limit } = wanted.limits;
    let held: BTreeSet<&String> = team.models.iter().collect();
    let monthly = team.budget_duration.as_deref().is_some_and(|d| matches!(d, "1mo" | "30d" | "monthly"));
    // An end that was begun and then called off leaves its mark behind; it goes with the next repair of our entries.
    let mut known = team.metadata.clone();
    let called_off = known.remove(TERMINATING_SINCE).is_some();
    let metadata = match wanted.mark.merged_into(&known) {
        Some(_) if mark_repairs >= MARK_REPAIRS => None,
        None if called_off => Some(known),
        merged => merged,
    };
    TeamPatch {
        models: (held != models.as_slice().iter().collect()).then(|| models.clone()),
        max_budget: cap(max_budget, team.max_budget),
        budget_duration: if monthly { Change::Keep } else { Change::Set(BUDGET_DURATION.into()) },
        tpm_limit: cap(tpm_limit, team.tpm_limit),
        rpm_limit: cap(rpm_limit, team.rpm_limit),
        blocked: (team.blocked != wanted.blocked).then_some(wanted.blocked),
        metadata,
    }
}

fn key_metadata(wanted: &Access, slot: Slot) -> Map<String, Value> {
    let mut metadata = wanted.mark.entries();
    metadata.insert("slot".into(), Value::String(slot.as_str().into()));
    metadata
}

fn plan_keys(rules: &Rules<'_>, wanted: &Access, seen: &Observed, slots: &[Chosen<'_>], models: &Models, actions: &mut Vec<Action>) {
    let resource = wanted.mark.resource;
    let ours = |key: &&Key| Mark::resource_of(&key.metadata, rules.owner) == Some(resource);
    let held = |key: &Key| slots.iter().any(|chosen| chosen.key.is_some_and(|k| k.hash == key.hash));
    let delete = |key: &Key| Action::DeleteKey { hash: key.hash.clone(), alias: key.alias.clone() };
    let served = |key: &&Key| {
        let alias = key.alias.as_deref().and_then(|alias| KeyAlias::parse(resource, alias));
        alias.is_none_or(|alias| rules.slots().contains(&alias.slot))
    };
    let retires = |key: &Key| slots.iter().any(|chosen| chosen.retires(key, resource, rules));
    let stale: Vec<&Key> = seen.keys.iter().filter(ours).filter(served).filter(|key| !held(key) && !retires(key)).collect();
    // A name still held by a dead key must be free before it is used again; the others may serve until the new key works.
    let needed: Vec<String> = slots.iter().filter(|c| c.key.is_none()).filter_map(|c| c.alias(resource)).map(|a| a.to_string()).collect();
    let (in_the_way, late): (Vec<&Key>, Vec<&Key>) =
        stale.into_iter().partition(|key| key.alias.as_ref().is_some_and(|a| needed.contains(a)));
    actions.extend(in_the_way.into_iter().map(delete));
    for chosen in slots {
        let metadata = key_metadata(wanted, chosen.slot);
        let Some(secret) = chosen.secret.filter(|_| rules.custom_keys || (chosen.key.is_some() && !chosen.is_replaced())) else {
            // A key that the gateway makes is read back, verified and marked ready by the next plan. A number that no
            // peer has seen yet is used after all.
            let mut draft = draft(rules, wanted, seen, chosen.slot, models);
            draft.rotation = chosen.after_replacement();
            if let Some(unused) = chosen.secret.filter(|s| s.connection.state == SecretState::Pending && chosen.key.is_none()) {
                draft.alias.number = unused.connection.number;
            }
            actions.push(Action::MintKey { draft, base: chosen.secret.cloned().map(Box::new), metadata });
            continue;
        };
        let alias = KeyAlias { resource, slot: chosen.slot, number: secret.connection.number };
        let key = &secret.connection.key;
        if chosen.key.is_none() {
            actions.push(Action::RegisterKey { alias: alias.clone(), key: key.clone(), metadata });
        }
        // Filled in by the gateway's defaults for keys, or set by hand: nobody ordered it.
        let bounds = chosen.key.map(Key::own_bounds).unwrap_or_default();
        if let Some(live) = chosen.key.filter(|_| !bounds.is_empty()) {
            actions.push(Action::FreeKey { hash: live.hash.clone(), alias: alias.clone(), bounds });
        }
        let unproven = chosen.key.is_none() || secret.connection.state == SecretState::Pending;
        if unproven && !wanted.blocked {
            actions.push(Action::VerifyKey { alias, key: key.clone(), models: listed_models(models) });
        }
    }
    actions.extend(late.into_iter().map(delete));
}

fn plan_waldur(rules: &Rules<'_>, wanted: &Access, seen: &Observed, slots: &[Chosen<'_>], models: &Models, actions: &mut Vec<Action>) {
    let resource = wanted.mark.resource;
    let alias_of = |slot: Slot| slots.iter().find(|c| c.slot == slot).and_then(|c| c.alias(resource));
    // A key that this very plan replaces is not shown any more: it may be one that others have seen.
    let project = slots.iter().find(|c| c.slot == Slot::Project && (rules.custom_keys || (c.key.is_some() && !c.is_replaced())));
    if let (Some(known), Some(alias), Some(secret)) = (&seen.api_keys, alias_of(Slot::Project), project.and_then(|c| c.secret)) {
        let id = alias.to_string();
        if !known.iter().any(|key| key.client_id == id) {
            actions.push(Action::ReportApiKey { alias, key: secret.connection.key.clone() });
        }
    }
    if rules.endpoints {
        let endpoints = endpoints(rules, &seen.resource.endpoints);
        if endpoints != seen.resource.endpoints {
            actions.push(Action::SetEndpoints(endpoints));
        }
    } else {
        let key = slots.iter().find(|c| c.slot == Slot::Project && wanted.key_in_report).and_then(|c| c.secret);
        let report = report(rules, wanted, models, key);
        if report != seen.resource.report {
            actions.push(Action::SubmitReport(report));
        }
    }
    let mut metadata = seen.resource.backend_metadata.clone();
    let ids = json!({
        "team_id": team_id(resource),
        "project_key": alias_of(Slot::Project).map(|a| a.to_string()),
        "chat_key": alias_of(Slot::Chat).map(|a| a.to_string()),
    });
    let keys_known = slots.iter().all(|c| c.secret.is_some());
    // What else is noted there, as months that were not billed, is not about these ids and stays.
    let mut noted = metadata.get("llm_access").and_then(Value::as_object).cloned().unwrap_or_default();
    noted.extend(ids.as_object().cloned().unwrap_or_default());
    let noted = Value::Object(noted);
    if keys_known && metadata.get("llm_access") != Some(&noted) {
        metadata.insert("llm_access".into(), noted);
        actions.push(Action::SetBackendMetadata(metadata));
    }
}

/// Our two endpoints beside whatever others there are.
fn endpoints(rules: &Rules<'_>, seen: &[Endpoint]) -> Vec<Endpoint> {
    let mut wanted = vec![Endpoint { name: API.into(), url: v1(rules.public_url) }];
    wanted.extend(rules.webui_url.map(|url| Endpoint { name: "Chat".into(), url: url.as_str().trim_end_matches('/').into() }));
    let mut merged = seen.to_vec();
    for endpoint in wanted {
        match merged.iter_mut().find(|e| e.name == endpoint.name) {
            Some(there) => there.url = endpoint.url,
            None => merged.push(endpoint),
        }
    }
    merged
}

fn report(rules: &Rules<'_>, wanted: &Access, models: &Models, key: Option<&Stored>) -> Vec<ReportSection> {
    use secrecy::ExposeSecret;
    let section = |header: &str, body: String| ReportSection { header: header.into(), body };
    let currency = &rules.offering.currency;
    let budget = wanted
        .limits
        .max_budget
        .map_or_else(|| "no limit".into(), |b| format!("{b} {currency} per calendar month, counted anew on the 1st (UTC)"));
    let mut sections = vec![section(API, v1(rules.public_url))];
    sections.extend(rules.webui_url.map(|url| section("Chat", url.as_str().trim_end_matches('/').into())));
    sections.push(section("Models", if models.is_none() { "none".into() } else { models.as_slice().join(", ") }));
    sections.push(section("Budget", budget));
    match key {
        Some(secret) => sections.push(section("API key", secret.connection.key.expose_secret().to_owned())),
        None => sections.push(section("API key", "Ask the operators of this service for the key of this resource.".into())),
    }
    sections
}

fn plan_secrets(rules: &Rules<'_>, wanted: &Access, slots: &[Chosen<'_>], models: &Models, actions: &mut Vec<Action>) {
    for chosen in slots {
        if let Some(secret) = chosen.secret {
            let connection = Connection {
                state: SecretState::Ready,
                order: wanted.order.or(secret.connection.order),
                base_url: base_url(rules, chosen.slot),
                models: listed_models(models),
                embedder: missed_embedder(rules, secret, models).or_else(|| embedder(rules, chosen.slot, models)),
                offering: wanted.mark.offering,
                project: wanted.mark.project.or(secret.connection.project),
                rotation: chosen.progress(rules),
                ..secret.connection.clone()
            };
            // Which order touched a Secret last is worth noting, not worth a write of its own.
            let same = Connection { order: secret.connection.order, ..connection.clone() } == secret.connection;
            let minted = (chosen.key.is_none() || chosen.is_replaced()) && !rules.custom_keys;
            if !minted && (!same || !secret.complete) {
                actions.push(Action::UpdateSecret { base: Box::new(secret.clone()), connection: Box::new(connection) });
            }
        }
        actions.extend(chosen.surplus.iter().map(|s| Action::DeleteSecret(Box::new((*s).clone()))));
    }
}

fn draft(rules: &Rules<'_>, wanted: &Access, seen: &Observed, slot: Slot, models: &Models) -> SecretDraft {
    let resource = wanted.mark.resource;
    let known = seen.api_keys.iter().flatten().map(|key| key.client_id.as_str());
    let live = seen.keys.iter().filter_map(|key| key.alias.as_deref());
    let stored: Vec<String> = seen
        .secrets
        .iter()
        .flat_map(|listed| &listed.stored)
        .map(|s| (Some(s.connection.slot), Some(s.connection.number)))
        .chain(seen.secrets.iter().flat_map(|listed| &listed.broken).map(|b| (b.slot, b.number)))
        .filter_map(|(slot, number)| Some(KeyAlias { resource, slot: slot?, number: number? }.to_string()))
        .collect();
    let taken = known.chain(live).chain(seen.retired_aliases.iter().map(String::as_str)).chain(stored.iter().map(String::as_str));
    SecretDraft {
        alias: KeyAlias::next(resource, slot, taken),
        name: secret_name(slot, &seen.resource.slug, resource),
        offering: wanted.mark.offering,
        project: wanted.mark.project,
        base_url: base_url(rules, slot),
        models: listed_models(models),
        embedder: embedder(rules, slot, models),
        order: wanted.order,
        rotation: Rotation::None,
    }
}

fn listed_models(models: &Models) -> Vec<String> {
    if models.is_none() { Vec::new() } else { models.as_slice().to_vec() }
}

/// The first always-included embedder that the team may call: it serves retrieval in Open WebUI.
fn embedder(rules: &Rules<'_>, slot: Slot, models: &Models) -> Option<String> {
    let callable = models.as_slice();
    let embeds = |name: &&String| callable.contains(name) && rules.catalogue.models.iter().any(|m| m.served_name == **name && m.embedding);
    rules.offering.always_include.iter().find(embeds).filter(|_| slot == Slot::Chat).cloned()
}

/// The embedder that a connection has, while it is missed in the catalogue too short a time to be gone.
fn missed_embedder(rules: &Rules<'_>, secret: &Stored, models: &Models) -> Option<String> {
    let missed = |name: &&String| {
        rules.catalogue.missing.contains_key(*name) && rules.offering.always_include.contains(name) && models.as_slice().contains(name)
    };
    secret.connection.embedder.as_ref().filter(missed).cloned()
}

fn base_url(rules: &Rules<'_>, slot: Slot) -> String {
    v1(match slot {
        Slot::Project => rules.public_url,
        Slot::Chat => rules.internal_url,
    })
}

/// The OpenAI-compatible base of an address: `…/v1`, without a trailing slash.
fn v1(url: &url::Url) -> String {
    format!("{}/v1", url.as_str().trim_end_matches('/'))
}
