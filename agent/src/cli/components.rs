//! `components list` and `components remove`: the components of the offerings, and how one of them goes for good.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rust_decimal::Decimal;
use uuid::Uuid;
use waldur_client::{Component, Offering, Resource, ResourceState};

use super::commands::{Problem, wrong};
use super::print::{clean, plural, say, table};
use crate::agent::{Agent, Failure};
use crate::config::{OfferingConfig, nearest};
use crate::domain::{BillingMonth, component_key};
use crate::gate::Peer;
use crate::plan::{Notes, OfferingAction, Shop, Stage, plan_retirement, removable_from, stage};
use crate::secret_file::SecretFile;
use crate::usage::pass::Pass;
use crate::usage::report::{How, Outcome, hold};

/// Months of usage that are looked through for what a removal would lose.
const HISTORY: usize = 12;

/// Looks and changes in one go.
const ROUNDS: usize = 6;

/// What to remove, and how far to go.
#[derive(Clone, Debug, Default)]
pub struct Remove {
    /// A component type, or a model.
    pub key: String,
    /// Only in this offering.
    pub offering: Option<Uuid>,
    /// Say what would be done; change nothing.
    pub dry_run: bool,
    /// Also where the model is in the catalogue, or there is usage this month.
    pub force: bool,
    /// Remove the rows of terminated resources first, with the token in this file.
    pub unlink_with: Option<PathBuf>,
}

/// Prints every component of every offering.
///
/// # Errors
/// A peer that does not answer.
pub async fn list(agent: &Agent) -> Result<(), Problem> {
    for settings in &agent.config.offerings {
        let offering = agent.look_at_offering(settings.uuid).await?;
        let Some(view) = agent.catalogue() else { return Err(wrong("the catalogue cannot be read; see `check`")) };
        let shop = agent.shop(settings, &view);
        let resources = agent.waldur.resources(settings.uuid, &[]).await?;
        let used = used_in(agent, settings.uuid, BillingMonth::of(agent.clock.now())).await?;
        say(format_args!("offering {} ({}): {}", settings.uuid.simple(), clean(&offering.name), by_state(&resources)))?;
        let notes = Notes::read(&offering);
        let rows: Vec<Vec<String>> = offering
            .components
            .iter()
            .map(|component| {
                let kind = &component.kind;
                let note = notes.components.get(kind);
                let stage = stage(&shop, &offering, kind);
                vec![
                    kind.clone(),
                    note.and_then(|note| note.model.clone()).unwrap_or_else(|| "–".into()),
                    stage.as_str().into(),
                    component.billing_type.to_string(),
                    prices(&offering, kind).join("; "),
                    used.get(kind).copied().unwrap_or_default().normalize().to_string(),
                    note.map(|note| why(&shop, stage, note)).unwrap_or_default(),
                ]
            })
            .collect();
        say(table(&["COMPONENT", "MODEL", "STATE", "BILLING", "PRICE", "THIS MONTH", "NOTE"], &rows))?;
    }
    Ok(())
}

fn why(shop: &Shop<'_>, stage: Stage, note: &crate::plan::Note) -> String {
    match (stage, note.gone) {
        (Stage::Retired, _) => note.reason.clone(),
        (Stage::Gone, Some(gone)) => format!("gone since {gone}; removed from {}", removable_from(gone, shop.late_days)),
        _ => String::new(),
    }
}

fn prices(offering: &Offering, kind: &str) -> Vec<String> {
    let living = offering.plans.iter().filter(|plan| !plan.archived);
    living
        .map(|plan| {
            let now = plan.prices.get(kind).copied().unwrap_or_default().normalize();
            match plan.future_prices.get(kind).map(Decimal::normalize).filter(|then| *then != now) {
                Some(then) => format!("{} {now}, from the 1st {then}", plan.name),
                None => format!("{} {now}", plan.name),
            }
        })
        .collect()
}

fn by_state(resources: &[Resource]) -> String {
    let mut states: BTreeMap<String, usize> = BTreeMap::new();
    for resource in resources {
        *states.entry(resource.state.to_string()).or_default() += 1;
    }
    if states.is_empty() {
        return "no resource rows".into();
    }
    let states: Vec<String> = states.into_iter().map(|(state, n)| format!("{n} {state}")).collect();
    format!("{} ({})", plural(resources.len(), "resource row"), states.join(", "))
}

/// What Waldur holds for each component in one month, over all resources of the offering.
async fn used_in(agent: &Agent, offering: Uuid, month: BillingMonth) -> Result<BTreeMap<String, Decimal>, Problem> {
    let ours: Vec<Uuid> = agent.waldur.resources(offering, &[]).await?.into_iter().map(|resource| resource.uuid).collect();
    let mut used: BTreeMap<String, Decimal> = BTreeMap::new();
    for row in agent.waldur.usages_of_offering(offering, month.first_day()).await? {
        if row.resource.is_none_or(|resource| ours.contains(&resource)) {
            hold(&mut used, row.kind, row.usage);
        }
    }
    Ok(used)
}

/// Removes one component, or those of one model: for good where Waldur lets it, else it is retired.
///
/// # Errors
/// What has to be forced, and peers that fail.
pub async fn remove(agent: &Agent, order: &Remove) -> Result<(), Problem> {
    let mut found = false;
    let mut known: Vec<String> = Vec::new();
    let offerings: Vec<&OfferingConfig> =
        agent.config.offerings.iter().filter(|settings| order.offering.is_none_or(|uuid| uuid == settings.uuid)).collect();
    if offerings.is_empty() {
        return Err(wrong("this offering is not among those of the configuration"));
    }
    for settings in offerings {
        let offering = agent.look_at_offering(settings.uuid).await?;
        let matching = matching(&offering, &order.key);
        known.extend(offering.components.iter().map(|component| component.kind.clone()));
        if matching.is_empty() {
            continue;
        }
        found = true;
        if let Some(owner) = Notes::read(&offering).owner.filter(|owner| *owner != agent.config.owner) {
            return Err(wrong(format!(
                "offering {} is kept by the agent of {owner:?}; its components are left alone",
                settings.uuid.simple()
            )));
        }
        remove_here(agent, settings, &offering, &matching, order).await?;
    }
    if !found {
        let hint = nearest(&order.key, known.iter().map(String::as_str)).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        say(format_args!("nothing to do: there is no component {:?}, and none of a model of that name{hint}", order.key))?;
    }
    Ok(())
}

/// The components that a key means: the one of this type, or those of the model.
fn matching(offering: &Offering, key: &str) -> Vec<Component> {
    if let Some(exact) = offering.components.iter().find(|component| component.kind == key) {
        return vec![exact.clone()];
    }
    let notes = Notes::read(offering);
    let types = [key.to_owned(), component_key(key)].map(|key| [format!("{key}:input"), format!("{key}:output")]).concat();
    let of_model = |kind: &str| notes.components.get(kind).is_some_and(|note| note.model.as_deref() == Some(key));
    offering.components.iter().filter(|component| types.contains(&component.kind) || of_model(&component.kind)).cloned().collect()
}

async fn remove_here(
    agent: &Agent,
    settings: &OfferingConfig,
    offering: &Offering,
    matching: &[Component],
    order: &Remove,
) -> Result<(), Problem> {
    let uuid = settings.uuid;
    let Some(view) = agent.catalogue() else {
        return Err(wrong("the catalogue cannot be read, so nobody knows what is stale; see `check`"));
    };
    let shop = agent.shop(settings, &view);
    let resources = agent.waldur.resources(uuid, &[]).await?;
    say(format_args!("offering {} ({}): {}", uuid.simple(), clean(&offering.name), by_state(&resources)))?;
    let mut objections: Vec<String> = Vec::new();
    if resources.iter().any(|resource| resource.state != ResourceState::Terminated) {
        objections.extend(report_usage(agent, order.dry_run).await?);
    }
    let used = used_in(agent, uuid, BillingMonth::of(agent.clock.now())).await?;
    let notes = Notes::read(offering);
    let mut todo: Vec<(&Component, Stage)> = Vec::new();
    for component in matching {
        let kind = &component.kind;
        let stage = stage(&shop, offering, kind);
        let model = notes.components.get(kind).and_then(|note| note.model.clone());
        say(format_args!("component {kind} ({}): {}", clean(&component.name), stage.as_str()))?;
        say(format_args!("  model: {}", model.as_deref().map_or_else(|| "none that we know of".into(), clean)))?;
        say(format_args!("  price: {}", clean(&prices(offering, kind).join("; "))))?;
        let this_month = used.get(kind).copied().unwrap_or_default();
        say(format_args!("  used this month: {}", this_month.normalize()))?;
        if stage == Stage::Retired
            && component.name.starts_with(crate::plan::RETIRED)
            && order.unlink_with.is_none()
            && !resources.is_empty()
        {
            say(format_args!(
                "  nothing to do: it is retired already, and Waldur removes no component while the offering has any resource row ({})",
                by_state(&resources)
            ))?;
            continue;
        }
        match stage {
            Stage::Current => {
                objections.push(format!("{kind} is sold: the catalogue and the configuration ask for it, so that the agent makes it again"))
            }
            Stage::Held => {
                objections.push(format!("{kind} is of a model that is missing from the catalogue but does not count as gone yet"))
            }
            _ => {}
        }
        if !this_month.is_zero() {
            objections.push(format!("{kind} has usage this month ({}), which would be lost", this_month.normalize()));
        }
        say_what_is_lost(agent, uuid, kind).await?;
        todo.push((component, stage));
    }
    if todo.is_empty() {
        return Ok(());
    }
    if !objections.is_empty() && !order.force {
        return Err(wrong(format!("{}; --force removes it all the same", objections.join("; "))));
    }
    if let Some(token) = &order.unlink_with {
        unlink(agent, uuid, &resources, token, order.dry_run).await?;
    }
    for (component, stage) in todo {
        if order.dry_run {
            let then = if resources.is_empty() || order.unlink_with.is_some() {
                ""
            } else {
                ", which Waldur refuses while there are resource rows, and then retire it: renamed, price 0, noted"
            };
            say(format_args!("would remove component {}{then}", component.kind))?;
        } else {
            remove_one(agent, settings, component, stage).await?;
        }
    }
    Ok(())
}

/// Reports what is not reported yet, so that what a removal would lose is seen; says what keeps it from being whole.
async fn report_usage(agent: &Agent, dry_run: bool) -> Result<Option<String>, Problem> {
    let how = How { dry_run, ..How::default() };
    let report = match agent.usage_pass(&Pass { how, ..Pass::default() }).await {
        Ok(report) => report,
        Err(failure) => return Ok(Some(format!("usage cannot be reported first: {failure}"))),
    };
    let would = report.lines.iter().filter(|line| matches!(line.outcome, Ok(Outcome::Would(_)))).count();
    match (report.sent(), would) {
        (0, 0) => {}
        (0, would) => say(format_args!("usage of {} would be reported first", plural(would, "resource")))?,
        (sent, _) => say(format_args!("usage of {} was reported first", plural(sent, "resource")))?,
    }
    if let Some((_, failure)) = report.failures().next() {
        return Ok(Some(format!("usage cannot be reported first: {failure}")));
    }
    Ok((!report.is_whole())
        .then(|| "usage cannot be reported first, since the gateway's ledger does not add up; run this again later".to_owned()))
}

async fn say_what_is_lost(agent: &Agent, offering: Uuid, kind: &str) -> Result<(), Problem> {
    let mut month = BillingMonth::of(agent.clock.now());
    let mut lost = Vec::new();
    for _ in 0..HISTORY {
        let used = used_in(agent, offering, month).await?;
        if let Some(amount) = used.get(kind).filter(|amount| !amount.is_zero()) {
            lost.push(format!("{month}: {}", amount.normalize()));
        }
        month = month.previous();
    }
    let lost = if lost.is_empty() { format!("none in the last {HISTORY} months") } else { lost.join(", ") };
    say(format_args!("  usage history in Waldur that a removal destroys (invoices stay): {lost}"))
}

async fn remove_one(agent: &Agent, settings: &OfferingConfig, component: &Component, stage: Stage) -> Result<(), Problem> {
    let (uuid, kind) = (settings.uuid, &component.kind);
    let Some(id) = component.uuid else { return Err(Problem { code: 1, message: format!("Waldur shows no uuid for component {kind}") }) };
    if matches!(stage, Stage::Current | Stage::Held) {
        return match agent.try_to_remove(uuid, id, kind).await? {
            None => say(format_args!("removed component {kind}")),
            Some(reason) => Err(Problem {
                code: 1,
                message: format!(
                    "component {kind} stays: {reason}. It is not retired, since the agent would take it into use again; take the model out of the catalogue first, and wait until it counts as gone"
                ),
            }),
        };
    }
    match agent.remove_component(uuid, id, kind, true).await? {
        None => return say(format_args!("removed component {kind}")),
        Some(reason) => say(format_args!("Waldur refuses: {}", clean(&reason)))?,
    }
    let mut before: Vec<OfferingAction> = Vec::new();
    let mut stubborn = false;
    for _ in 0..ROUNDS {
        let offering = agent.look_at_offering(uuid).await?;
        let Some(view) = agent.catalogue() else { return Err(wrong("the catalogue cannot be read; see `check`")) };
        let shop = Shop { stubborn, ..agent.shop(settings, &view) };
        let actions = plan_retirement(&shop, &offering, kind);
        if actions.is_empty() {
            return say(format_args!(
                "retired component {kind}: renamed, price 0 on every plan ({}), noted on the offering; its removal is tried again by the running agent",
                clean(&prices(&offering, kind).join("; "))
            ));
        }
        if actions == before {
            if stubborn {
                break;
            }
            stubborn = true;
            continue;
        }
        for action in &actions {
            agent.apply_to_offering(settings, &offering, action).await?;
        }
        before = actions;
    }
    let left = before.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    Err(Failure::Refused { peer: Peer::Waldur, message: format!("Waldur accepts these changes but does not keep them: {left}") }.into())
}

/// Removes the rows of terminated resources; never one in another state.
async fn unlink(agent: &Agent, offering: Uuid, resources: &[Resource], token: &Path, dry_run: bool) -> Result<(), Problem> {
    let living: Vec<String> = resources
        .iter()
        .filter(|resource| resource.state != ResourceState::Terminated)
        .map(|r| format!("{} ({})", r.uuid.simple(), r.state))
        .collect();
    if !living.is_empty() {
        return Err(wrong(format!(
            "{} of offering {} in a state other than Terminated, and Waldur removes no component while there is any: {}; nothing was unlinked",
            plural(living.len(), "resource"),
            offering.simple(),
            living.iter().take(20).cloned().collect::<Vec<_>>().join(", ")
        )));
    }
    let staff = agent.waldur_as(SecretFile::new(token)).map_err(wrong)?;
    for resource in resources {
        let line = format!("resource {} ({}), {}", resource.uuid.simple(), clean(&resource.name), resource.state);
        if dry_run {
            say(format_args!("would unlink {line}"))?;
            continue;
        }
        // Looked at once more: unlinking takes a row whatever its state.
        match staff.resource(resource.uuid).await {
            Ok(now) if now.state == ResourceState::Terminated => staff.unlink_resource(resource.uuid).await?,
            Ok(now) => return Err(wrong(format!("resource {} is {} now; it is left alone", resource.uuid.simple(), now.state))),
            Err(error) if error.class() == waldur_client::Class::NotFound => continue,
            Err(error) => return Err(error.into()),
        }
        say(format_args!("unlinked {line}"))?;
    }
    Ok(())
}
