//! The resource loop: everything that lives is compared with what it should be, in bulk, and what drifted is repaired.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use tracing::Instrument;
use uuid::Uuid;
use waldur_client::{OrderKind, OrderState, Resource, ResourceState};

use crate::agent::{Agent, Failure};
use crate::config::OfferingConfig;
use crate::domain::{Mark, team_id};
use crate::features::Feature;
use crate::gate::Peer;
use crate::observe::packed::Packed;
use crate::observe::{Depth, World, push};
use crate::orders::{MOST_HEALS, OUR_ERROR, attempt_of, count};
use crate::plan::{API, Action, Obstacle, plan_access, plan_orphan, wanted_access};

/// Conditions of a resource that the slow beat raises and clears.
const DRIFT_CONDITIONS: [&str; 8] = [
    "order-given-up",
    "foreign-backend-id",
    "foreign-team",
    "foreign-secret",
    "taken-secret",
    "limits-not-servable",
    "no-models",
    "not-kept",
];

/// A resource whose models have all gone.
const NO_MODELS_LEFT: &str = "no-models-left";

/// Looks and removals in one go.
const ROUNDS: usize = 4;

/// What one slow beat found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    /// Resources that were compared.
    pub compared: usize,
    /// Those that differ and are being repaired.
    pub drifted: Vec<Uuid>,
    /// Those that only a person can help, with the reason.
    pub blocked: Vec<(Uuid, Obstacle)>,
    /// Resources of ours that Waldur shows as ended.
    pub orphans: Vec<Uuid>,
    /// Resources of ours that Waldur does not show at all.
    pub lost: Vec<Uuid>,
    /// Orders, with their resources, that Waldur erred by itself while they were approved.
    pub tripped: Vec<(Uuid, Uuid)>,
}

/// How a Waldur of the first generation says that its own plugin was in the wrong state for an order that we approved.
pub(crate) const TRIPPED: &str = "Can't switch from state";

/// The states of resources that have not ended.
const LIVING: [ResourceState; 5] =
    [ResourceState::Creating, ResourceState::Ok, ResourceState::Erred, ResourceState::Updating, ResourceState::Terminating];

impl Agent {
    /// Compares everything and begins the repairs. Returns without waiting for them.
    ///
    /// # Errors
    /// A read that failed or did not add up: then nothing at all is concluded.
    pub async fn resource_beat(&self) -> Result<Drift, Failure> {
        let result = self.compare_everything().await;
        match &result {
            Ok(drift) => {
                self.conditions.clear("resources-unread", "");
                metrics::gauge!("llm_access_resources").set(count(drift.compared));
                metrics::gauge!("llm_access_resources_drifted").set(count(drift.drifted.len()));
                if drift.drifted.is_empty() && drift.orphans.is_empty() {
                    tracing::debug!(compared = drift.compared, "resources are as they should be");
                } else {
                    tracing::info!(
                        compared = drift.compared,
                        drifted = drift.drifted.len(),
                        orphans = drift.orphans.len(),
                        "resources compared"
                    );
                }
            }
            Err(failure) => {
                self.note_pass_failure(failure);
                self.conditions.raise(
                    "resources-unread",
                    "",
                    format!("the resources could not be compared, so nothing is repaired or removed: {failure}"),
                );
            }
        }
        self.progress.ended(
            "resources",
            match &result {
                Ok(drift) => format!("{} compared, {} differed, {} orphans", drift.compared, drift.drifted.len(), drift.orphans.len()),
                Err(failure) => format!("nothing was compared: {failure}"),
            },
        );
        result
    }

    async fn compare_everything(&self) -> Result<Drift, Failure> {
        let world = self.read_world().await?;
        self.note_budgets(&world);
        self.seen.note_world(&world, self.clock.now());
        let drift = self.find_drift(&world).await?;
        // A repair that was put off and whose resource has ended would wait for ever, and the right that it lacked be missed.
        self.schedule.forget_resources(|id| world.resources.contains_key(&id) || drift.orphans.contains(&id));
        if !drift.drifted.is_empty() {
            self.memory().api_keys.forget();
        }
        let mut asked = HashSet::new();
        for id in &drift.drifted {
            if let Some((offering, _)) = world.resources.get(id) {
                // Where a right is missing, one repair per pass asks whether it is there again.
                if self.schedule.right(*id).is_some_and(|right| !asked.insert(right)) {
                    continue;
                }
                self.begin_repair(*offering, *id);
            }
        }
        // Whether the server has endpoints by now is asked with one resource, not with all of them at once.
        let blocked: HashSet<Uuid> = drift.blocked.iter().map(|(id, _)| *id).collect();
        let sample =
            world.resources.iter().find(|(id, (_, resource))| resource.bare().state == ResourceState::Ok && !blocked.contains(*id));
        if let Some((id, (offering, _))) = sample.filter(|_| self.features.forget_old_no(Feature::Endpoints)) {
            self.begin_repair(*offering, *id);
        }
        for (id, obstacle) in &drift.blocked {
            self.conditions.raise(obstacle.condition(), id.simple(), obstacle);
        }
        for id in &drift.orphans {
            self.begin_removal(*id);
        }
        self.restart_webuis(&world);
        for (order, resource) in &drift.tripped {
            self.begin_retake(*order, *resource);
        }
        Ok(drift)
    }

    /// Reads everything of ours, page by page.
    ///
    /// # Errors
    /// Any page that fails or does not add up fails the whole.
    pub async fn read_world(&self) -> Result<World, Failure> {
        let mut world = World::default();
        for offering in &self.config.offerings {
            let uuid = offering.uuid;
            for resource in self.waldur.resources_as(uuid, &LIVING, World::packed).await? {
                world.resources.insert(resource.bare().uuid, (uuid, resource));
            }
            let governed = match self.refresh_governed(uuid).await {
                Ok(governed) => {
                    self.conditions.clear("offering-not-shown", uuid.simple());
                    governed
                }
                // An agent that lost its role sees neither the offering nor its resources: what that means for those is
                // judged with everything else.
                Err(error) if error.class() == waldur_client::Class::NotFound && !world.resources.values().any(|(of, _)| *of == uuid) => {
                    self.conditions.raise(
                        "offering-not-shown",
                        uuid.simple(),
                        format!(
                            "Waldur does not show offering {}; check its uuid in the configuration and the agent's role in Waldur",
                            uuid.simple()
                        ),
                    );
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if self.features.worth_trying(Feature::ApiKeys)
                && !governed
                && let Some(known) = self.all_api_keys(uuid).await?
            {
                world.api_keys.insert(uuid, known);
            }
        }
        for offering in &self.config.offerings {
            world.erred_orders.extend(self.waldur.orders(offering.uuid, &[OrderState::Erred]).await?);
        }
        self.note_answer(Peer::Waldur);
        // A report in the place of endpoints tells a fresh process what an earlier one learnt.
        if self.features.known(Feature::Endpoints).is_none()
            && world.resources.values().any(|(_, resource)| reported_instead(resource.bare()))
        {
            self.features.learn(Feature::Endpoints, false);
        }
        for team in self.gateway.teams_as(Packed::new).await? {
            world.teams.insert(team.bare().team_id.clone(), team);
        }
        for key in self.gateway.keys_as(Packed::new).await? {
            if let Some(team) = key.bare().team_id.clone().filter(|_| !key.bare().deleted) {
                push(world.keys.entry(team).or_default(), key);
            }
        }
        self.note_answer(Peer::Gateway);
        self.secrets.each(|read| world.add_secret(read)).await?;
        self.note_answer(Peer::Secrets);
        Ok(world)
    }

    /// Compares; writes nothing.
    ///
    /// # Errors
    /// Waldur does not answer about what it did not list.
    pub async fn find_drift(&self, world: &World) -> Result<Drift, Failure> {
        let mut drift = Drift::default();
        let mut without = HashSet::new();
        if let Some(catalogue) = self.catalogue() {
            for (id, (offering, resource)) in &world.resources {
                let Some(offering) = self.offering(*offering) else { continue };
                drift.compared += 1;
                let erred = resource.bare().state == ResourceState::Erred;
                if !(resource.bare().state == ResourceState::Ok || erred) {
                    // An order is on its way with it.
                    continue;
                }
                let rules = self.rules(offering, &catalogue);
                let seen = world.view(offering.uuid, resource, self.mark_repairs(*id));
                let held = seen.team.as_ref().map(|team| team.models.as_slice()).unwrap_or_default();
                let wanted = match seen.foreign(rules.owner) {
                    Some(obstacle) => Err(obstacle),
                    None => wanted_access(&rules, &seen.resource, None, held),
                };
                if wanted.as_ref().is_ok_and(|wanted| wanted.models.as_ref().is_some_and(BTreeSet::is_empty)) {
                    without.insert(*id);
                    self.conditions.raise(
                        NO_MODELS_LEFT,
                        id.simple(),
                        format!(
                            "resource {} ({}) is left without any model: all that it ordered have gone",
                            id.simple(),
                            seen.resource.slug
                        ),
                    );
                }
                let plan = wanted.and_then(|wanted| plan_access(&rules, &wanted, &seen));
                match plan {
                    Ok(actions) if actions.is_empty() && !erred => {
                        self.conditions.clear_all(&DRIFT_CONDITIONS, id.simple());
                        self.schedule.forget(*id);
                        if seen.mark_repairs == 0 {
                            self.conditions.clear("two-writers", id.simple());
                        }
                    }
                    Ok(_) => drift.drifted.push(*id),
                    Err(obstacle) => {
                        // Nothing is done with it, so nothing of it waits, and no right is missed for it.
                        self.schedule.forget(*id);
                        drift.blocked.push((*id, obstacle));
                    }
                }
                if seen.mark_repairs >= 2 && seen.team.as_ref().is_some_and(|team| Mark::owner_of(&team.metadata).is_none()) {
                    let message = format!(
                        "two writers on the metadata of team {}: ours was removed again after it was restored; find the other writer",
                        team_id(*id)
                    );
                    self.conditions.raise("two-writers", id.simple(), message);
                }
            }
        }
        self.conditions.clear_others(NO_MODELS_LEFT, &without);
        metrics::gauge!("llm_access_resources_without_models").set(count(without.len()));
        drift.tripped = self.find_tripped(world);
        self.find_orphans(world, &mut drift).await?;
        Ok(drift)
    }

    /// Orders that were erred while they were approved, though nothing is wrong with their resource. The turn that approved
    /// them takes them up again at once; this finds them after a crash in between.
    fn find_tripped(&self, world: &World) -> Vec<(Uuid, Uuid)> {
        let memory = self.memory();
        let fine = |id: &Uuid| world.resources.get(id).is_some_and(|(_, resource)| resource.bare().state == ResourceState::Ok);
        let tripped = world.erred_orders.iter().filter(|order| order.kind != OrderKind::Create && order.error_message.contains(TRIPPED));
        tripped
            .filter(|order| !memory.passed.contains(&order.uuid))
            .filter_map(|order| Some((order.uuid, order.resource.filter(fine)?)))
            .collect()
    }

    fn begin_retake(&self, order: Uuid, resource: Uuid) {
        let Some(busy) = self.schedule.take(resource) else { return };
        let agent = self.clone();
        let span = tracing::info_span!("retake", order = %order.simple(), resource = %resource.simple());
        let work = async move {
            let _busy = busy;
            let Ok(_worker) = agent.repairers.clone().acquire_owned().await else { return };
            let retaken = async {
                let orders = agent.waldur.orders_of_resource(resource, &[]).await?;
                let last = orders.iter().max_by_key(|order| (order.created, order.uuid));
                if last.is_some_and(|last| last.uuid == order && last.state == OrderState::Erred) {
                    agent.take_up_again(order).await?;
                    tracing::info!("an order that Waldur erred while it was approved is taken up again");
                } else {
                    // Something was ordered after it: it is history.
                    agent.memory().passed.insert(order);
                }
                Ok::<(), Failure>(())
            };
            match retaken.await {
                Ok(()) => agent.right_is_there(resource),
                Err(Failure::Forbidden { peer, right, message }) => agent.right_is_missing(resource, peer, right, &message),
                Err(failure) => {
                    agent.note_failure(&failure);
                    tracing::warn!("an order that Waldur erred while it was approved cannot be taken up again yet: {failure}");
                }
            }
        };
        self.tasks.spawn(work.instrument(span));
    }

    /// What carries our mark but belongs to no living resource. Each is asked for by itself: only what Waldur shows as ended
    /// is an orphan. An agent that lost its role sees nothing at all, and must not conclude anything from it.
    async fn find_orphans(&self, world: &World, drift: &mut Drift) -> Result<(), Failure> {
        const NAME: &str = "lost-sight";
        let owner = &self.config.owner;
        let mut ours = world.marked(owner);
        ours.retain(|_, offering| offering.is_none_or(|of| self.offering(of).is_some()));
        let missing: Vec<Uuid> = ours.keys().filter(|id| !world.resources.contains_key(*id)).copied().collect();
        let most = usize::try_from(self.config.orphans.max_per_pass).unwrap_or(usize::MAX).max(1);
        // Those asked about first must not keep the others waiting for ever.
        let begin = { std::mem::replace(&mut self.memory().orphan_cursor, 0) }.min(missing.len());
        let asked: Vec<Uuid> = missing.iter().cycle().skip(begin).take(most.min(missing.len())).copied().collect();
        self.memory().orphan_cursor = if missing.is_empty() { 0 } else { (begin + asked.len()) % missing.len() };
        for id in &asked {
            match self.waldur.resource(*id).await {
                Ok(resource) if resource.state == ResourceState::Terminated => drift.orphans.push(*id),
                // It came to life while we read.
                Ok(_) => {}
                Err(error) if error.class() == waldur_client::Class::NotFound => drift.lost.push(*id),
                Err(error) => return Err(error.into()),
            }
        }
        // One in twenty, rounded down, may be out of sight before everything is doubted; those not asked about this time are
        // taken to be like those that were.
        if drift.lost.len().saturating_mul(missing.len()).saturating_mul(20) > ours.len().saturating_mul(asked.len()) {
            let (seen, known) = (ours.len() - missing.len() + asked.len() - drift.lost.len(), ours.len());
            self.conditions.raise(NAME, "", format!("Waldur answers but shows only {seen} of {known} resources that are known by our mark; nothing is removed. Check the agent's role in Waldur and the offering uuids"));
            drift.orphans.clear();
        } else {
            self.conditions.clear(NAME, "");
        }
        for id in &drift.lost {
            self.conditions.raise(
                "resource-not-shown",
                id.simple(),
                format!(
                    "resource {} has a team, keys or Secrets of ours but Waldur does not show it; `llm-access-agent orphans list` tells more",
                    id.simple()
                ),
            );
        }
        let known_lost: BTreeSet<String> = drift.lost.iter().map(|id| id.simple().to_string()).collect();
        for (name, subject, _) in self.conditions.all() {
            if name == "resource-not-shown" && !known_lost.contains(&subject) {
                self.conditions.clear("resource-not-shown", subject);
            }
        }
        Ok(())
    }

    fn begin_repair(&self, offering: Uuid, id: Uuid) {
        let Some(busy) = self.schedule.take(id) else { return };
        if !self.schedule.is_due(id) {
            return;
        }
        let agent = self.clone();
        let span = tracing::info_span!("repair", resource = %id.simple());
        let work = async move {
            let _busy = busy;
            let Ok(_worker) = agent.repairers.clone().acquire_owned().await else { return };
            let Some(offering) = agent.offering(offering) else { return };
            match agent.repair(offering, id).await {
                Ok(()) => {
                    agent.right_is_there(id);
                    agent.schedule.forget(id);
                }
                Err(Failure::Forbidden { peer, right, message }) => agent.right_is_missing(id, peer, right, &message),
                Err(failure) => {
                    agent.note_failure(&failure);
                    if let Failure::Blocked(obstacle) = &failure {
                        agent.conditions.raise(obstacle.condition(), id.simple(), obstacle);
                    }
                    let (delay, _) = agent.schedule.back_off(id, &failure.to_string(), None, false);
                    tracing::warn!(?delay, "the resource could not be repaired: {failure}");
                }
            }
        };
        self.tasks.spawn(work.instrument(span));
    }

    /// Looks again at one resource, by itself, and repairs what still differs.
    async fn repair(&self, offering: &OfferingConfig, id: Uuid) -> Result<(), Failure> {
        let resource = self.waldur.resource(id).await?;
        match resource.state {
            ResourceState::Ok => self.converge(offering, None, resource, Depth::Full).await.map(drop),
            ResourceState::Erred => self.heal(offering, resource).await,
            _ => Ok(()),
        }
    }

    /// An erred resource: its last order is taken up again where it was ours to fail; what somebody else failed is tidied;
    /// and one that only looks erred is set to OK.
    async fn heal(&self, offering: &OfferingConfig, resource: Resource) -> Result<(), Failure> {
        let id = resource.uuid;
        let mut orders = self.waldur.orders_of_resource(id, &[]).await?;
        orders.sort_by_key(|order| (order.created, order.uuid));
        let Some(last) = orders.last() else { return Ok(()) };
        if last.state == OrderState::Erred {
            if last.error_message.starts_with(OUR_ERROR) {
                let attempts = attempt_of(&last.error_message);
                if attempts > MOST_HEALS {
                    self.conditions.raise(
                        "order-given-up",
                        id.simple(),
                        format!(
                            "order {0} erred {attempts} times; look into the log and then run `llm-access-agent orders retry {0}`",
                            last.uuid.simple()
                        ),
                    );
                    return Ok(());
                }
                self.memory().heals.insert(last.uuid, attempts);
                self.take_up_again(last.uuid).await?;
                tracing::info!(order = %last.uuid.simple(), attempts, "erred order taken up again");
                return Ok(());
            }
            if matches!(last.kind, OrderKind::Create | OrderKind::Restore) {
                return self.after_end(last).await;
            }
        } else if last.state != OrderState::Done {
            return Ok(());
        }
        self.converge(offering, None, resource, Depth::Full).await?;
        if self.features.worth_trying(Feature::SetOk) {
            self.must_lead()?;
            match self.waldur.set_resource_ok(id).await {
                Ok(()) => {
                    self.features.learn(Feature::SetOk, true);
                    tracing::info!("the resource works and is set to OK");
                }
                Err(error) if error.class() == waldur_client::Class::NoSuchRoute => {
                    self.features.learn(Feature::SetOk, false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn begin_removal(&self, id: Uuid) {
        let Some(busy) = self.schedule.take(id) else { return };
        let agent = self.clone();
        let span = tracing::info_span!("orphan", resource = %id.simple());
        let work = async move {
            let _busy = busy;
            let Ok(_worker) = agent.repairers.clone().acquire_owned().await else { return };
            let removed = async {
                let resource = agent.waldur.resource(id).await?;
                if resource.state == ResourceState::Terminated { agent.remove_remains(resource).await } else { Ok(()) }
            };
            match removed.await {
                Ok(()) => {
                    agent.right_is_there(id);
                    agent.schedule.forget(id);
                }
                Err(Failure::Forbidden { peer, right, message }) => agent.right_is_missing(id, peer, right, &message),
                Err(failure) => {
                    agent.note_failure(&failure);
                    tracing::warn!("what is left of an ended resource could not be removed yet: {failure}");
                }
            }
        };
        self.tasks.spawn(work.instrument(span));
    }

    /// Removes what is left of a resource that ended, or whose create came to nothing; only what carries our mark.
    pub(crate) async fn remove_remains(&self, resource: Resource) -> Result<(), Failure> {
        let id = resource.uuid;
        let mut resource = resource;
        for _ in 0..ROUNDS {
            let seen = self.observe_for_removal(resource).await?;
            let actions: Vec<Action> = plan_orphan(&self.config.owner, &seen);
            if actions.is_empty() {
                return Ok(());
            }
            match self.apply(id, &actions).await {
                Err(failure) if !self.is_leading() => return Err(failure),
                Ok(()) | Err(Failure::Conflict { .. }) => {}
                Err(failure) => return Err(failure),
            }
            resource = seen.resource;
        }
        Err(Failure::Conflict { message: format!("what is left of resource {} is still there after {ROUNDS} attempts", id.simple()) })
    }

    async fn beat(&self, which: Loop) {
        match which {
            Loop::Orders => drop(self.order_beat().await),
            Loop::Resources => drop(self.resource_beat().await),
            Loop::Offering => self.offering_beat().await,
            Loop::Usage => drop(self.usage_beat().await),
        }
    }

    /// Runs `loops` until `stop` resolves, then waits for the work in flight, at most `grace`.
    pub async fn run(&self, loops: &[Loop], stop: impl Future<Output = ()>, grace: Duration) {
        let token = tokio_util::sync::CancellationToken::new();
        let mut running = tokio::task::JoinSet::new();
        for which in loops {
            let (agent, token, which) = (self.clone(), token.clone(), *which);
            let interval = match which {
                Loop::Orders => self.config.intervals.orders,
                Loop::Resources => self.config.intervals.resources,
                Loop::Offering => self.config.intervals.offering,
                Loop::Usage => self.config.intervals.usage,
            };
            self.progress.expect(which.as_str(), interval);
            running.spawn(async move {
                let mut away = 0;
                loop {
                    if agent.is_leading() {
                        let span = tracing::info_span!("pass", loop = which.as_str(), id = pass_id());
                        agent.beat(which).instrument(span).await;
                    } else {
                        agent.progress.beat(which.as_str());
                    }
                    away = if agent.is_cut_off() { away + 1 } else { 0 };
                    let wait = grown(interval, away, agent.config.backoff.max);
                    tokio::select! {
                        () = agent.clock.sleep(crate::orders::jittered(wait)) => {}
                        () = token.cancelled() => return,
                    }
                }
            });
        }
        stop.await;
        tracing::info!("stopping: no new work is begun, what is in flight may end");
        token.cancel();
        self.tasks.close();
        let drained = async {
            while running.join_next().await.is_some() {}
            self.tasks.wait().await;
            self.secrets.events().flush().await;
        };
        if tokio::time::timeout(grace, drained).await.is_err() {
            tracing::warn!("work in flight did not end within {grace:?}; the next start goes on where it stopped");
        }
    }
}

/// What tells the lines of one pass from those of any other, of this process or another.
fn pass_id() -> String {
    let mut bytes = [0; 4];
    // Without randomness the lines of two passes are told apart by their times alone.
    let _ = getrandom::fill(&mut bytes);
    format!("{:08x}", u32::from_be_bytes(bytes))
}

/// The wait before the next beat of a loop, after `away` beats in a row that met a peer which cannot be reached: twice as long
/// each time, up to `longest` and to eight intervals, since a loop counts as stuck after ten.
fn grown(interval: Duration, away: u32, longest: Duration) -> Duration {
    interval.saturating_mul(1 << away.min(3)).min(longest.max(interval))
}

/// Whether the address that endpoints would show is in a report.
fn reported_instead(resource: &Resource) -> bool {
    resource.report.iter().any(|section| section.header == API) && !resource.endpoints.iter().any(|endpoint| endpoint.name == API)
}

/// The loops of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// Orders.
    Orders,
    /// Resources.
    Resources,
    /// Offerings and their catalogue.
    Offering,
    /// Usage.
    Usage,
}

impl Loop {
    /// Its name in `--only`, probes and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Orders => "orders",
            Self::Resources => "resources",
            Self::Offering => "offering",
            Self::Usage => "usage",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_waits_longer_for_a_peer_that_is_away_but_never_as_long_as_one_that_hangs() {
        let seconds = Duration::from_secs;
        let waits = |interval: u64| (0..6).map(|away| grown(seconds(interval), away, seconds(600)).as_secs()).collect::<Vec<_>>();
        assert_eq!(waits(15), [15, 30, 60, 120, 120, 120]);
        assert_eq!(waits(60), [60, 120, 240, 480, 480, 480]);
        assert_eq!(waits(900), [900; 6], "an interval of its own may be longer");
    }
}
