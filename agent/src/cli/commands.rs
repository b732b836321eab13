//! One-off commands. Each is safe beside a running agent: it does what the loops would do, or only reads.

use rust_decimal::Decimal;
use secrecy::ExposeSecret;
use serde_json::json;
use uuid::Uuid;
use waldur_client::{OrderKind, OrderState, ResourceState};

use super::EXIT_INPUT;
use super::print::{clean, plural, say, table};
use crate::agent::{Agent, Failure};
use crate::config::OfferingConfig;
use crate::domain::{Mark, team_id};
use crate::observe::{Depth, World};
use crate::plan::{Ownership, Removal, Verdict, evaluate, plan_access, plan_removal, wanted_access};
use crate::rotation::NotRotated;
use crate::secrets::{SecretState, Slot};
use crate::usage::budget;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub struct Problem {
    /// The exit code.
    pub code: u8,
    /// For the operator.
    pub message: String,
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self { code: 1, message: failure.to_string() }
    }
}

impl From<waldur_client::Error> for Problem {
    fn from(error: waldur_client::Error) -> Self {
        if error.class() == waldur_client::Class::NotFound {
            return wrong(format!("{error}; is the uuid right, and may this token see the object?"));
        }
        Failure::from(error).into()
    }
}

pub(super) fn wrong(message: impl Into<String>) -> Problem {
    Problem { code: EXIT_INPUT, message: message.into() }
}

/// Prints what the next passes would do.
pub async fn plan(agent: &Agent) -> Result<(), Problem> {
    let mut lines: Vec<String> = Vec::new();
    let mut in_orders = Vec::new();
    let mut notes = plan_offerings(agent, &mut lines).await?;
    for offering in &agent.config.offerings {
        let orders = agent.waldur.orders(offering.uuid, &[OrderState::PendingProvider, OrderState::Executing]).await?;
        for order in orders {
            let Some(resource) = order.resource else { continue };
            in_orders.push(resource);
            let steps = plan_order(agent, offering, &order, resource).await?;
            lines.push(format!("order {} ({} of resource {}):", order.uuid.simple(), order.kind, resource.simple()));
            lines.extend(steps.into_iter().map(|step| format!("  {step}")));
        }
    }
    let world = agent.read_world().await?;
    let drift = agent.find_drift(&world).await?;
    let Some(catalogue) = agent.catalogue() else { return Err(wrong("the catalogue cannot be read; see `check`")) };
    for id in drift.drifted.iter().filter(|id| !in_orders.contains(id)) {
        let Some((offering, resource)) = world.resources.get(id) else { continue };
        let Some(offering) = agent.offering(*offering) else { continue };
        let rules = agent.rules(offering, &catalogue);
        let seen = world.view(offering.uuid, resource, 0);
        let held = seen.team.as_ref().map(|team| team.models.as_slice()).unwrap_or_default();
        let actions = wanted_access(&rules, &seen.resource, None, held).and_then(|wanted| plan_access(&rules, &wanted, &seen));
        lines.push(format!("resource {} ({}):", id.simple(), clean(&seen.resource.slug)));
        if seen.resource.state == ResourceState::Erred {
            lines.push("  take up its erred order again, or set it to OK".into());
        }
        match actions {
            Ok(actions) => lines.extend(actions.iter().map(|action| format!("  {}", clean(&action.to_string())))),
            Err(obstacle) => lines.push(format!("  nothing: {obstacle}")),
        }
    }
    for (id, obstacle) in drift.blocked.iter().filter(|(id, _)| !in_orders.contains(id)) {
        notes.push(format!("resource {}: left alone: {}", id.simple(), clean(&obstacle.to_string())));
    }
    for id in &drift.orphans {
        lines.push(format!("resource {} has ended: remove what is left of it", id.simple()));
    }
    for id in &drift.lost {
        notes.push(format!("resource {} is not shown by Waldur: left alone; see `orphans list`", id.simple()));
    }
    let gateway = agent.compare_gateway().await?;
    if !gateway.left.is_empty() {
        lines.push("gateway:".into());
        lines.extend(gateway.left.iter().map(|action| format!("  {}", clean(&action.to_string()))));
    }
    if lines.is_empty() {
        say(format_args!("nothing to do: {} as wanted, no order open", plural(drift.compared - drift.blocked.len(), "resource")))?;
    } else {
        say(lines.join("\n"))?;
    }
    if !notes.is_empty() {
        say(format_args!("to know:\n  {}", notes.join("\n  ")))?;
    }
    Ok(())
}

/// What the offering loop would do. Gives what it waits for, or leaves to people.
async fn plan_offerings(agent: &Agent, lines: &mut Vec<String>) -> Result<Vec<String>, Problem> {
    let mut notes = Vec::new();
    for settings in &agent.config.offerings {
        let offering = agent.waldur.offering(settings.uuid).await?;
        match agent.offering_plan(settings, &offering) {
            Ok(plan) => {
                if !plan.actions.is_empty() {
                    lines.push(format!("offering {} ({}):", settings.uuid.simple(), clean(&offering.name)));
                    lines.extend(plan.actions.iter().map(|action| format!("  {}", clean(&action.to_string()))));
                }
                notes.extend(
                    plan.findings.iter().map(|finding| format!("offering {}: {}", settings.uuid.simple(), clean(&finding.to_string()))),
                );
            }
            Err(obstacle) => notes.push(clean(&obstacle)),
        }
    }
    let Some(view) = agent.catalogue() else { return Ok(notes) };
    if let Some(shrink) = &view.held {
        notes.push(clean(&format!("catalogue: held: {shrink}")));
    }
    for (model, since) in &view.missing {
        notes.push(format!(
            "catalogue: {} is missing since {since}; it counts as gone after {}",
            clean(model),
            crate::config::show_duration(agent.config.catalogue.hold)
        ));
    }
    Ok(notes)
}

async fn plan_order(
    agent: &Agent,
    offering: &OfferingConfig,
    order: &waldur_client::Order,
    resource: Uuid,
) -> Result<Vec<String>, Problem> {
    let Some(catalogue) = agent.catalogue() else { return Err(wrong("the catalogue cannot be read; see `check`")) };
    let resource = agent.waldur.resource(resource).await?;
    agent.is_governed(offering.uuid).await?;
    let rules = agent.rules(offering, &catalogue);
    let mut steps = Vec::new();
    if order.state == OrderState::PendingProvider {
        match evaluate(&rules, order, Some(&resource)) {
            Verdict::Approve => steps.push("approve it".to_owned()),
            Verdict::Reject(comment) => return Ok(vec![format!("reject it: {}", clean(&comment))]),
            Verdict::Manual => return Ok(vec!["wait for a person's approval".into()]),
            Verdict::Ignore => return Ok(vec!["nothing: orders of this type are left to people".into()]),
        }
    }
    if order.kind == OrderKind::Terminate {
        let seen = agent.observe_for_removal(resource).await?;
        let step = match plan_removal(rules.owner, &seen, agent.clock.now(), agent.config.terminate.drain) {
            Ok(Removal::Block(_)) => {
                "block the team, wait out calls in flight, report the final usage, remove keys, team and Secrets".to_owned()
            }
            Ok(Removal::Drain(until)) => format!("wait until {until}, report the final usage, remove keys, team and Secrets"),
            Ok(Removal::Bill { .. } | Removal::Remove(_)) => "report the final usage, remove keys, team and Secrets".to_owned(),
            Ok(Removal::Nothing) => "nothing is there".to_owned(),
            Err(obstacle) => return Ok(vec![format!("nothing: {obstacle}")]),
        };
        steps.push(step);
    } else {
        let seen = agent.observe(resource, offering.uuid, Depth::Full).await?;
        let held = seen.team.as_ref().map(|team| team.models.as_slice()).unwrap_or_default();
        let wanted = match seen.foreign(rules.owner) {
            Some(obstacle) => Err(obstacle),
            None => wanted_access(&rules, &seen.resource, Some(order), held),
        };
        match wanted.and_then(|wanted| plan_access(&rules, &wanted, &seen)) {
            Ok(actions) => steps.extend(actions.iter().map(|action| clean(&action.to_string()))),
            Err(obstacle) => return Ok(vec![format!("nothing: {}", clean(&obstacle.to_string()))]),
        }
        if seen.secrets.as_ref().is_some_and(|listed| listed.stored.is_empty()) {
            steps.push("then team, keys, what the customer sees, proof that the keys work".into());
        }
    }
    steps.push("set the order to done".into());
    Ok(steps)
}

/// Prints every resource with what it has.
pub async fn status(agent: &Agent, as_json: bool) -> Result<(), Problem> {
    let world = agent.read_world().await?;
    let mut rows = Vec::new();
    let mut values = Vec::new();
    for (id, (offering, resource)) in &world.resources {
        let seen = world.view(*offering, resource, 0);
        let resource = &seen.resource;
        let team = seen.team.as_ref();
        let secrets = seen.secrets.as_ref();
        let ready = |slot: Slot| {
            let stored = secrets.and_then(|listed| listed.stored.iter().find(|s| s.connection.slot == slot));
            match stored {
                None => "missing",
                Some(s) if s.connection.state == SecretState::Pending => "pending",
                Some(s) if !s.complete => "damaged",
                Some(_) => "ready",
            }
        };
        let ownership = match seen.ownership(&agent.config.owner) {
            Ownership::Absent => "none".to_owned(),
            Ownership::Ours => {
                if team.is_some_and(|t| t.blocked) {
                    "blocked".into()
                } else {
                    "active".into()
                }
            }
            Ownership::Foreign(_) => "foreign".to_owned(),
        };
        let budget = team.and_then(|team| team.max_budget);
        let spend = team.map(|team| team.spend).unwrap_or_default();
        let share = team.and_then(budget::share);
        let overdue = team.is_some_and(|team| budget::is_overdue(team, agent.clock.now()));
        values.push(json!({
            "resource": id.simple().to_string(), "offering": offering.simple().to_string(), "slug": resource.slug, "state": resource.state.to_string(), "team": ownership,
            "keys": seen.keys.len(), "project_secret": ready(Slot::Project), "chat_secret": ready(Slot::Chat), "spend": spend.to_string(),
            "max_budget": budget.map(|b| b.to_string()), "budget_reset_at": team.and_then(|t| t.budget_reset_at),
            "spent_percent": share.map(|share| share.to_string()), "budget_reset_overdue": overdue,
        }));
        rows.push(vec![
            id.simple().to_string(),
            resource.slug.chars().take(40).collect(),
            resource.state.to_string(),
            ownership,
            seen.keys.len().to_string(),
            ready(Slot::Project).to_owned(),
            ready(Slot::Chat).to_owned(),
            format!(
                "{} / {}{}",
                spend.round_dp(2).normalize(),
                budget.map_or_else(|| "none".into(), |b: Decimal| b.normalize().to_string()),
                share.map(|share| format!(" ({share} %)")).unwrap_or_default()
            ),
            format!(
                "{}{}",
                team.and_then(|t| t.budget_reset_at).map(|at| at.to_string()).unwrap_or_default(),
                if overdue { " OVERDUE" } else { "" }
            ),
        ]);
    }
    if as_json {
        say(json!({"resources": values}))
    } else if rows.is_empty() {
        say("there are no resources; those that have ended are not listed")
    } else {
        say(table(&["RESOURCE", "SLUG", "STATE", "TEAM", "KEYS", "PROJECT SECRET", "CHAT SECRET", "SPEND / BUDGET", "RESET"], &rows))
    }
}

/// Takes an erred order up again.
pub async fn retry(agent: &Agent, order: Uuid) -> Result<(), Problem> {
    let seen = agent.waldur.order(order).await?;
    if seen.state != OrderState::Erred {
        return Err(wrong(format!("order {} is {}, not erred; there is nothing to retry", order.simple(), seen.state)));
    }
    agent.take_up_again(order).await?;
    say(format_args!("order {} is executing again; a running agent takes it up at its next beat", order.simple()))
}

/// Prints one key.
pub async fn show_key(agent: &Agent, resource: Uuid, chat: bool) -> Result<(), Problem> {
    let slot = if chat { Slot::Chat } else { Slot::Project };
    let seen = agent.waldur.resource(resource).await?;
    let listed = agent.secrets.of_resource(resource, seen.project).await.map_err(Failure::from)?;
    let Some(stored) = listed.stored.iter().find(|stored| stored.connection.slot == slot) else {
        return Err(wrong(format!(
            "resource {} has no {} key; `llm-access-agent status` shows what it has",
            resource.simple(),
            slot.as_str()
        )));
    };
    say(stored.connection.key.expose_secret())
}

/// Replaces the keys of a resource; `only` names the chat key and the project's, both where neither is named.
pub async fn rotate_keys(agent: &Agent, resource: Uuid, only: (bool, bool), at_once: bool) -> Result<(), Problem> {
    let slots: Vec<Slot> =
        [(only.0, Slot::Chat), (only.1, Slot::Project)].into_iter().filter(|(named, _)| *named).map(|(_, slot)| slot).collect();
    let rotated = agent.rotate_keys(resource, &slots, at_once).await.map_err(|problem| match problem {
        NotRotated::Wrong(message) => wrong(message),
        NotRotated::Failed(failure) => {
            Problem { code: 1, message: format!("{failure}; run this again, or leave the rest to the running agent") }
        }
    })?;
    for one in rotated {
        let (slot, alias, secret) = (one.slot.as_str(), one.alias, one.secret);
        let made = if one.begun {
            format!("key {alias} is new and works")
        } else {
            format!("key {alias} was made by an earlier call and works; no other was made")
        };
        let old = match one.old_until {
            Some(until) => format!("the old one serves until {until}, then a running agent deletes it"),
            None => "no older one is left".to_owned(),
        };
        say(format_args!("{slot}: {made}; Secret {secret} holds it; {old}"))?;
    }
    Ok(())
}

/// Marks a foreign team as ours and tells Waldur.
pub async fn adopt(agent: &Agent, resource: Uuid) -> Result<(), Problem> {
    let seen = agent.waldur.resource(resource).await?;
    let Some(offering) = seen.offering.and_then(|uuid| agent.offering(uuid)) else {
        return Err(wrong(format!("resource {} is of an offering that is not in the configuration", resource.simple())));
    };
    let id = team_id(resource);
    let Some(team) = agent.gateway.team(&id).await.map_err(Failure::from)? else {
        return Err(wrong(format!("there is no team {id} to adopt; the agent makes one by itself when the resource needs it")));
    };
    if let Some(other) = Mark::owner_of(&team.metadata).filter(|owner| *owner != agent.config.owner) {
        return Err(wrong(format!(
            "team {id} belongs to the agent of {other:?}; stop that agent and remove its `owner` entry from the team's metadata first"
        )));
    }
    let mark =
        Mark { owner: agent.config.owner.clone(), offering: offering.uuid, resource, project: seen.project, customer: seen.customer };
    match mark.merged_into(&team.metadata) {
        None => say(format_args!("team {id} is ours already")),
        Some(metadata) => {
            let patch = litellm_client::TeamPatch { metadata: Some(metadata), ..Default::default() };
            agent.gateway.update_team(&id, &patch).await.map_err(Failure::from)?;
            let kept = agent.gateway.team(&id).await.map_err(Failure::from)?.is_some_and(|team| mark.merged_into(&team.metadata).is_none());
            if !kept {
                return Err(Problem {
                    code: 1,
                    message: format!("team {id} did not keep our mark; try again, and look for another writer"),
                });
            }
            say(format_args!("team {id} is ours now; its own keys stay, and the next beat gives it ours"))
        }
    }
}

/// Prints what has no living resource.
pub async fn list_orphans(agent: &Agent) -> Result<(), Problem> {
    let world = agent.read_world().await?;
    let rows = orphan_rows(agent, &world).await?;
    if rows.is_empty() {
        return say("nothing of ours is without a living resource");
    }
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(id, state, has)| vec![id.simple().to_string(), state, has]).collect();
    say(table(&["RESOURCE", "WALDUR SAYS", "WHAT IS LEFT"], &rows))
}

async fn orphan_rows(agent: &Agent, world: &World) -> Result<Vec<(Uuid, String, String)>, Problem> {
    let owner = &agent.config.owner;
    let mut rows = Vec::new();
    for id in world.marked(owner).into_keys().filter(|id| !world.resources.contains_key(id)) {
        let state = match agent.waldur.resource(id).await {
            Ok(resource) => resource.state.to_string(),
            Err(error) if error.class() == waldur_client::Class::NotFound => "not shown".into(),
            Err(error) => return Err(Failure::from(error).into()),
        };
        let team = world.teams.contains_key(&team_id(id));
        let keys = world.keys.get(&team_id(id)).map_or(0, Vec::len);
        let secrets = world.secrets.get(&id).map_or(0, |listed| listed.stored.len() + listed.broken.len());
        rows.push((id, state, format!("{}, {keys} keys, {secrets} Secrets", if team { "team" } else { "no team" })));
    }
    Ok(rows)
}

/// Removes what has no living resource.
pub async fn remove_orphans(agent: &Agent, only: Option<Uuid>) -> Result<(), Problem> {
    let world = agent.read_world().await?;
    let rows = orphan_rows(agent, &world).await?;
    if let Some(id) = only.filter(|id| !rows.iter().any(|(row, ..)| row == id)) {
        let why = if world.resources.contains_key(&id) {
            "it is alive; order its termination in Waldur"
        } else {
            "nothing of ours carries its id"
        };
        return Err(wrong(format!("resource {} is no orphan: {why}", id.simple())));
    }
    let mut removed = 0_usize;
    for (id, state, has) in rows {
        let named = only == Some(id);
        let wanted = if only.is_some() { named } else { state == ResourceState::Terminated.to_string() };
        if !wanted {
            continue;
        }
        let Some(_busy) = agent.schedule.take(id) else { continue };
        let resource = match agent.waldur.resource(id).await {
            Ok(resource) => resource,
            Err(error) if error.class() == waldur_client::Class::NotFound && named => {
                waldur_client::Resource { uuid: id, ..Default::default() }
            }
            Err(error) => return Err(Failure::from(error).into()),
        };
        if !named && resource.state != ResourceState::Terminated {
            continue;
        }
        agent.remove_remains(resource).await?;
        removed += 1;
        say(format_args!("removed what was left of resource {} ({has}; Waldur: {state})", id.simple()))?;
    }
    if removed == 0 {
        say("nothing to remove: no resource of ours is shown as ended; name one that Waldur does not show to remove it all the same")?;
    }
    Ok(())
}
