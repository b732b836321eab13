//! What must hold in every world at rest, whatever happened before. See docs/invariants.md.

use std::collections::{BTreeMap, BTreeSet};

use llm_access_fixtures::faults::Peer;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::World;

/// The sha256 of a key in hexadecimal, as the gateway addresses it.
#[must_use]
pub fn hash(key: &str) -> String {
    Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks every invariant, and says all that are broken.
pub fn check(world: &World) {
    let problems = problems(world);
    assert!(problems.is_empty(), "the world is not as it must be:\n{}", problems.join("\n"));
}

/// What is broken.
#[must_use]
pub fn problems(world: &World) -> Vec<String> {
    let mut problems = Vec::new();
    let teams: BTreeMap<String, _> = world.gateway.teams().into_iter().map(|team| (team.team_id.clone(), team)).collect();
    let mut living = BTreeSet::new();
    for resource in world.waldur.resources().into_iter().filter(|r| r.offering == world.offering) {
        let id = resource.uuid.simple().to_string();
        let name = format!("resource {} ({})", resource.slug, resource.state);
        let secrets = world.secrets(resource.uuid);
        let keys: Vec<_> =
            world.gateway.live_keys(&id).into_iter().filter(|key| key.metadata["managed_by"] == "llm-access-agent").collect();
        if resource.state != "OK" {
            if teams.get(&id).is_some_and(|team| team.metadata["owner"] == world.owner.as_str()) {
                problems.push(format!("{name} still has a team"));
            }
            if !keys.is_empty() {
                problems.push(format!("{name} still has {} keys", keys.len()));
            }
            if !secrets.is_empty() {
                problems.push(format!("{name} still has Secrets {:?}", secrets.keys()));
            }
            continue;
        }
        living.insert(resource.uuid);
        if resource.backend_id != id {
            problems.push(format!("{name} has the backend_id {:?}", resource.backend_id));
        }
        let Some(team) = teams.get(&id) else {
            problems.push(format!("{name} has no team"));
            continue;
        };
        if team.models.is_empty() {
            problems.push(format!("{name}: an empty model list allows every model"));
        }
        if secrets.keys().collect::<Vec<_>>() != ["chat", "project"] {
            problems.push(format!("{name} has Secrets {:?}", secrets.keys()));
            continue;
        }
        let stored: BTreeSet<String> = ["chat", "project"].map(|slot| hash(&world.key(resource.uuid, slot))).into();
        let live: BTreeSet<String> = keys.iter().map(|key| key.hash.clone()).collect();
        if stored.len() != 2 || keys.len() != 2 || stored != live {
            problems.push(format!(
                "{name}: Secrets hold {stored:?}, the gateway {:?}",
                keys.iter().map(|k| (&k.alias, &k.hash)).collect::<Vec<_>>()
            ));
        }
        let model = team.models.iter().find(|model| *model != "no-default-models");
        if let (Some(model), false) = (model, team.blocked) {
            for slot in ["chat", "project"] {
                if let Err((status, message)) = world.gateway.verdict(&world.key(resource.uuid, slot), model) {
                    problems.push(format!("{name}: the {slot} key gets {status} {message} for {model}"));
                }
            }
        }
        // Waldur lets no provider end a key on its own: one that was lost stays listed, and the newest is the one that works.
        let known = world.waldur.api_keys(resource.uuid);
        let serving = known.iter().filter(|key| key.state == "OK");
        let newest = serving.max_by_key(|key| key.client_id.rsplit('-').next().and_then(|n| n.parse::<u32>().ok()));
        if !known.is_empty() && newest.map(|key| &key.key) != Some(&world.key(resource.uuid, "project")) {
            problems.push(format!("{name}: Waldur shows keys {:?}", known.iter().map(|k| (&k.client_id, &k.state)).collect::<Vec<_>>()));
        }
        if resource.endpoints.is_empty() && resource.report.is_empty() {
            problems.push(format!("{name}: the customer sees neither endpoints nor a report"));
        }
    }
    let open: BTreeSet<Uuid> = world.waldur.resources().iter().map(|r| r.uuid).collect();
    for team in teams.values().filter(|team| team.metadata["owner"] == world.owner.as_str()) {
        if Uuid::parse_str(&team.team_id).is_ok_and(|id| !open.contains(&id)) {
            problems.push(format!("team {} belongs to no resource", team.team_id));
        }
    }
    problems.extend(leaks(world));
    problems
}

/// Keys and credentials may only travel to where they belong: bodies to the gateway, to the Secret store and to Waldur's
/// list of keys. Never a path, never another body.
fn leaks(world: &World) -> Vec<String> {
    let secrets: BTreeSet<String> = world
        .waldur
        .resources()
        .iter()
        .flat_map(|resource| world.secrets(resource.uuid).into_values())
        .filter_map(|data| data.get("OPENAI_API_KEY").or_else(|| data.get("OPENAI_API_KEYS")).cloned())
        .chain([world.waldur.agent_token(), world.gateway.master_key()])
        .collect();
    let mut problems = Vec::new();
    for call in world.faults.calls() {
        let body_may = call.peer == Peer::Kube
            || call.path.contains("/key/generate")
            || call.path.contains("report_created")
            || call.path.contains("set_key");
        for secret in &secrets {
            if call.path.contains(secret.as_str()) || (!body_may && call.body.contains(secret.as_str())) {
                problems.push(format!("a secret leaked into {} {}", call.method, call.path.split('?').next().unwrap_or_default()));
            }
        }
    }
    problems
}
