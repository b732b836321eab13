//! The order loop: each open order is judged, carried out, proven and ended, several at a time, each resource by one task.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use tracing::Instrument;
use uuid::Uuid;
use waldur_client::{Order, OrderKind, OrderState, Resource, ResourceState};

use crate::agent::{Agent, Failure};
use crate::clock::after;
use crate::config::{ApprovalMode, OfferingConfig};
use crate::domain::reference;
use crate::features::Feature;
use crate::gate::Peer;
use crate::observe::Depth;
use crate::plan::{
    Action, Observed, Obstacle, Removal, Rules, SecretDraft, Verdict, approval, evaluate, foreign_backend, plan_access, plan_removal,
    wanted_access,
};
use crate::resources::TRIPPED;
use crate::schedule::Busy;

/// The start of every error message that the agent gives an order, by which it knows its own.
pub const OUR_ERROR: &str = "llm-access-agent:";

/// A refusal ends an order only when the peer repeats it this often.
const REFUSALS: u32 = 2;

/// How often an erred order is taken up again before a person must ask for it.
pub const MOST_HEALS: u32 = 3;

/// Looks and repairs in one go, before the order waits for its next turn.
const ROUNDS: usize = 8;

/// Conditions that concern one order, cleared when it is no longer open.
const UNKNOWN_TYPE: &str = "unknown-order-type";
const WITHOUT_RESOURCE: &str = "order-without-resource";

/// Conditions that concern one resource, cleared when it works.
const RESOURCE_CONDITIONS: [&str; 8] = [
    "order-given-up",
    "foreign-backend-id",
    "foreign-team",
    "foreign-secret",
    "taken-secret",
    "limits-not-servable",
    "no-models",
    "not-kept",
];

/// How a turn of an order ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Turn {
    /// The order is done.
    Done,
    /// It was rejected, with a comment.
    Rejected,
    /// A person decides.
    LeftToPeople,
    /// It waits until then, holding no worker.
    Waits(Timestamp, &'static str),
    /// Somebody else ended it.
    Ended(OrderState),
}

/// What one beat did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Offerings whose orders were read.
    pub read: usize,
    /// Open orders.
    pub open: usize,
    /// Orders begun now.
    pub begun: usize,
}

impl Agent {
    /// Reads the open orders of every offering and begins each that is due. Returns without waiting for them.
    pub async fn order_beat(&self) -> Beat {
        let mut beat = Beat::default();
        let spared = self.probe_gates().await;
        let mut listed = HashSet::new();
        let (mut unknown, mut homeless) = (HashSet::new(), HashSet::new());
        let mut complete = true;
        let mut asked = HashSet::new();
        for offering in &self.config.offerings {
            let orders = match self.waldur.orders(offering.uuid, &[OrderState::PendingProvider, OrderState::Executing]).await {
                Ok(orders) => orders,
                Err(error) => {
                    complete = false;
                    let failure = Failure::from(error);
                    self.note_failure(&failure);
                    self.conditions.raise(
                        "orders-unread",
                        offering.uuid.simple(),
                        format!("the orders of offering {} cannot be read: {failure}", offering.uuid.simple()),
                    );
                    continue;
                }
            };
            self.note_answer(Peer::Waldur);
            self.conditions.clear("orders-unread", offering.uuid.simple());
            beat.read += 1;
            beat.open += orders.len();
            metrics::gauge!("llm_access_open_orders", "offering" => offering.uuid.simple().to_string()).set(count(orders.len()));
            let mut orders = orders;
            orders.sort_by_key(|order| (order.created, order.uuid));
            let oldest = orders.iter().find_map(|order| order.created).map_or(0.0, crate::http::seconds);
            metrics::gauge!("llm_access_oldest_open_order_timestamp_seconds", "offering" => offering.uuid.simple().to_string()).set(oldest);
            self.seen.note_orders(offering, &orders);
            for order in orders {
                listed.insert(order.uuid);
                if !spared.is_empty() || !self.schedule.is_due(order.uuid) {
                    continue;
                }
                if order.state == OrderState::PendingProvider && approval(offering, &order.kind) == Some(ApprovalMode::Manual) {
                    // A person decides, and may take days: nothing is asked about it meanwhile.
                    continue;
                }
                if matches!(order.kind, OrderKind::Other(_)) {
                    unknown.insert(order.uuid);
                }
                let Some(resource) = order.resource else {
                    homeless.insert(order.uuid);
                    self.conditions.raise(WITHOUT_RESOURCE, order.uuid.simple(), "Waldur shows no resource for this order; it waits");
                    continue;
                };
                // Where a right is missing, one order per beat asks whether it is there again.
                if self.schedule.right(order.uuid).is_some_and(|right| !asked.insert(right)) {
                    continue;
                }
                let Some(busy) = self.schedule.take(resource) else { continue };
                beat.begun += 1;
                self.begin(offering.uuid, order, resource, busy);
            }
        }
        if complete && spared.is_empty() {
            self.conditions.clear_others(UNKNOWN_TYPE, &unknown);
            self.conditions.clear_others(WITHOUT_RESOURCE, &homeless);
            for (order, resource) in self.schedule.vanished(&listed) {
                if let Some(busy) = self.schedule.take(resource) {
                    self.follow(order, resource, busy);
                }
            }
        }
        self.forget_rights();
        self.progress.ended(
            "orders",
            match beat.read {
                read if read == self.config.offerings.len() => format!("{} open, {} begun", beat.open, beat.begun),
                read => format!(
                    "the orders of {} of {} offerings were read: {} open, {} begun",
                    read,
                    self.config.offerings.len(),
                    beat.open,
                    beat.begun
                ),
            },
        );
        beat
    }

    fn begin(&self, offering: Uuid, order: Order, resource: Uuid, busy: Busy) {
        let agent = self.clone();
        let span = tracing::info_span!("order", order = %order.uuid.simple(), kind = %order.kind, resource = %resource.simple());
        let work = async move {
            let _busy = busy;
            let Ok(_worker) = agent.workers.clone().acquire_owned().await else { return };
            let Some(offering) = agent.offering(offering) else { return };
            let began = agent.clock.now();
            agent.schedule.track(order.uuid, resource);
            let turn = agent.turn(offering, &order, resource).await;
            agent.end_turn(&order, resource, turn, began).await;
        };
        self.tasks.spawn(work.instrument(span));
    }

    /// An order that was begun is no longer open, and it was not us who ended it.
    fn follow(&self, order: Uuid, resource: Uuid, busy: Busy) {
        let agent = self.clone();
        let span = tracing::info_span!("order", order = %order.simple(), resource = %resource.simple());
        let work = async move {
            let _busy = busy;
            let Ok(_worker) = agent.workers.clone().acquire_owned().await else { return };
            let followed = async {
                let order = agent.waldur.order(order).await?;
                agent.after_end(&order).await
            };
            match followed.await {
                Ok(()) => {
                    agent.schedule.forget(order);
                    agent.forget_final_usage(order);
                    agent.conditions.clear_all(&RESOURCE_CONDITIONS, resource.simple());
                }
                Err(Failure::Forbidden { peer, right, message }) => agent.right_is_missing(order, peer, right, &message),
                Err(failure) => tracing::warn!("the order is no longer open and cannot be followed yet: {failure}"),
            }
        };
        self.tasks.spawn(work.instrument(span));
    }

    /// Somebody else ended an order: what was made for a create that came to nothing is removed.
    pub(crate) async fn after_end(&self, order: &Order) -> Result<(), Failure> {
        let made_something = matches!(order.kind, OrderKind::Create | OrderKind::Restore);
        let (Some(resource), true) = (order.resource, made_something && ended_without_success(&order.state)) else { return Ok(()) };
        if order.state == OrderState::Erred && order.error_message.starts_with(OUR_ERROR) {
            return Ok(());
        }
        let resource = self.waldur.resource(resource).await?;
        // Whoever follows an order may come late: after a replica that led meanwhile, or after hours without a Lease.
        let orders = self.waldur.orders_of_resource(resource.uuid, &[]).await?;
        let went_on = |other: &Order| other.created > order.created && !ended_without_success(&other.state);
        if resource.state == ResourceState::Ok || orders.iter().any(went_on) {
            tracing::info!("the order was ended by somebody else ({}), and its resource goes on by another one", order.state);
            return Ok(());
        }
        tracing::info!("the order was ended by somebody else ({}); what was made for it is removed", order.state);
        self.remove_remains(resource).await
    }

    async fn end_turn(&self, order: &Order, resource: Uuid, turn: Result<Turn, Failure>, began: Timestamp) {
        let kind = order.kind.to_string();
        let took = began.duration_until(self.clock.now());
        let outcome = match &turn {
            Ok(Turn::Done) => "done",
            Ok(Turn::Rejected) => "rejected",
            Ok(Turn::LeftToPeople) => "manual",
            Ok(Turn::Waits(..)) => "waits",
            Ok(Turn::Ended(_)) => "ended",
            Err(_) => "failed",
        };
        metrics::counter!("llm_access_order_turns_total", "kind" => kind, "outcome" => outcome).increment(1);
        if matches!(turn, Ok(Turn::Done)) {
            self.right_is_there(order.uuid);
        }
        match turn {
            Ok(Turn::Done) => {
                tracing::info!(took = %took, "order done");
                self.schedule.forget(order.uuid);
                self.forget_order(order.uuid);
                self.conditions.clear_all(&RESOURCE_CONDITIONS, resource.simple());
            }
            Ok(Turn::Rejected | Turn::LeftToPeople) => self.schedule.forget(order.uuid),
            Ok(Turn::Waits(until, why)) => {
                tracing::info!(%until, "order waits: {why}");
                self.schedule.wait_until(order.uuid, until, why);
            }
            Ok(Turn::Ended(state)) => {
                tracing::info!("the order was ended by somebody else: {state}");
                // It stays tracked: the next beat follows it.
            }
            Err(failure) => self.order_failed(order, resource, &failure).await,
        }
    }

    fn forget_order(&self, order: Uuid) {
        self.forget_final_usage(order);
        self.memory().heals.remove(&order);
    }

    fn forget_final_usage(&self, order: Uuid) {
        let mut memory = self.memory();
        memory.readings.remove(&order);
        memory.billed.remove(&order);
        memory.usage.forget_end(order);
    }

    async fn order_failed(&self, order: &Order, resource: Uuid, failure: &Failure) {
        if let Failure::Forbidden { peer, right, message } = failure {
            return self.right_is_missing(order.uuid, *peer, right.clone(), message);
        }
        self.note_failure(failure);
        match failure {
            Failure::Credential { .. } | Failure::Forbidden { .. } => {
                // A fault of the site: no order is to blame and none is put off; the gate lets one probe through per beat.
                tracing::debug!("{failure}");
            }
            Failure::Refused { .. } => {
                let (delay, refusals) = self.schedule.back_off(order.uuid, &failure.to_string(), None, true);
                tracing::warn!(refusals, ?delay, "a peer refuses a step of this order: {failure}");
                if refusals >= REFUSALS && order.kind != OrderKind::Terminate {
                    self.err_order(order, &failure.to_string()).await;
                }
            }
            Failure::Blocked(obstacle) => {
                self.conditions.raise(obstacle.condition(), resource.simple(), obstacle);
                let (delay, _) = self.schedule.back_off(order.uuid, &obstacle.to_string(), None, false);
                tracing::warn!(?delay, "the order stays open: {obstacle}");
                if obstacle.is_final() && order.state == OrderState::Executing {
                    self.err_order(order, &obstacle.to_string()).await;
                }
            }
            Failure::Transient { retry_after, .. } => {
                let capped = retry_after.map(|wait| wait.min(self.config.backoff.max));
                let (delay, _) = self.schedule.back_off(order.uuid, &failure.to_string(), capped, false);
                tracing::warn!(?delay, "the order is tried again: {failure}");
            }
            Failure::Conflict { .. } => {
                let (delay, _) = self.schedule.back_off(order.uuid, &failure.to_string(), None, false);
                tracing::info!(?delay, "the world moved while the order was worked on: {failure}");
            }
        }
    }

    /// Ends an order that can never succeed as it stands, after looking whether it is still ours to end. The customer
    /// reads a fixed text and a reference; the log has the rest under the same reference.
    async fn err_order(&self, order: &Order, cause: &str) {
        let reference = reference(order.uuid, cause);
        // An open order that still shows an error of ours was taken up again after it, maybe by another process.
        let heals = self.memory().heals.get(&order.uuid).copied().unwrap_or_else(|| attempt_of(&order.error_message)).min(MOST_HEALS);
        let message = format!(
            "{OUR_ERROR} the order could not be carried out (attempt {} of {}). Please contact the operators of this service. Reference: {reference}",
            heals.saturating_add(1),
            MOST_HEALS + 1
        );
        let result = async {
            let now = self.waldur.order(order.uuid).await?;
            if now.state != OrderState::Executing {
                return Ok(false);
            }
            self.must_lead()?;
            self.waldur.set_order_erred(order.uuid, &message, &format!("reference {reference}")).await?;
            Ok::<bool, Failure>(true)
        };
        match result.await {
            Ok(erred) => {
                if erred {
                    metrics::counter!("llm_access_orders_erred_total").increment(1);
                    tracing::error!(reference, "the order is set to erred: {cause}");
                }
                self.schedule.forget(order.uuid);
            }
            Err(failure) => tracing::warn!(reference, "the order should be set to erred but cannot be yet: {failure}"),
        }
    }

    /// One turn of one order.
    async fn turn(&self, offering: &OfferingConfig, order: &Order, resource: Uuid) -> Result<Turn, Failure> {
        if let OrderKind::Other(kind) = &order.kind {
            self.conditions.raise(
                UNKNOWN_TYPE,
                order.uuid.simple(),
                format!("orders of type {kind:?} are not known to this agent; the order is left to people"),
            );
            return Ok(Turn::LeftToPeople);
        }
        // Read before the order is judged: what another agent made is not ours to approve, not even for a create.
        let resource = self.waldur.resource(resource).await?;
        // Somebody may have ended the order since it was listed. Its resource is not on its way any more then: one that was to be
        // ended is in use again, and one that was to be made is not wanted.
        let at_rest = matches!(resource.state, ResourceState::Ok | ResourceState::Erred | ResourceState::Terminated);
        if order.state == OrderState::Executing
            && at_rest
            && let Some(state) = self.ended_meanwhile(order).await?
        {
            return Ok(Turn::Ended(state));
        }
        let governed = self.is_governed(offering.uuid).await?;
        tracing::trace!(governed, "offering known");
        if order.state == OrderState::PendingProvider
            && let Some(turn) = self.judge(offering, order, &resource).await?
        {
            return Ok(turn);
        }
        match order.kind {
            OrderKind::Terminate => self.terminate(order, resource).await,
            _ => self.provide(offering, order, resource).await,
        }
    }

    /// Approves or rejects a pending order; `None` where it may be carried out now.
    async fn judge(&self, offering: &OfferingConfig, order: &Order, resource: &Resource) -> Result<Option<Turn>, Failure> {
        if let Some(obstacle) = foreign_backend(resource) {
            return Err(obstacle.into());
        }
        let verdict = if order.kind == OrderKind::Terminate && offering.approval.terminate == ApprovalMode::Auto {
            Verdict::Approve
        } else {
            let Some(catalogue) = self.catalogue() else {
                return Ok(Some(Turn::Waits(after(self.clock.now(), self.config.intervals.orders), "no catalogue could be read yet")));
            };
            evaluate(&self.rules(offering, &catalogue), order, Some(resource))
        };
        match verdict {
            Verdict::Approve => {
                self.must_lead()?;
                let answered = self.waldur.approve_order(order.uuid).await?;
                tracing::info!("order approved");
                if !answered && order.kind == OrderKind::Create {
                    // A server of the first generation answers nothing, and begins at once.
                    return Ok(None);
                }
                let now = self.waldur.order(order.uuid).await?;
                match now.state {
                    OrderState::Executing => Ok(None),
                    // Servers of the first generation trip over their own plugin when they begin an update or an end, though
                    // nothing went wrong with it; taken up again, it goes on.
                    OrderState::Erred if order.kind != OrderKind::Create && now.error_message.contains(TRIPPED) => {
                        tracing::info!("Waldur erred the order while it was approved ({}); it is taken up again", now.error_message);
                        self.take_up_again(order.uuid).await?;
                        Ok(None)
                    }
                    state @ (OrderState::Erred | OrderState::Canceled | OrderState::Rejected) => Ok(Some(Turn::Ended(state))),
                    _ => Ok(Some(Turn::LeftToPeople)),
                }
            }
            Verdict::Reject(comment) => {
                self.must_lead()?;
                self.waldur.reject_order(order.uuid, &comment).await?;
                metrics::counter!("llm_access_orders_rejected_total").increment(1);
                tracing::info!("order rejected: {comment}");
                Ok(Some(Turn::Rejected))
            }
            Verdict::Manual | Verdict::Ignore => Ok(Some(Turn::LeftToPeople)),
        }
    }

    /// Create, restore and update: make the world match, read it back, end the order.
    async fn provide(&self, offering: &OfferingConfig, order: &Order, resource: Resource) -> Result<Turn, Failure> {
        let fresh = matches!(order.kind, OrderKind::Create | OrderKind::Restore);
        if !fresh && changes_nothing(order, &resource) && foreign_backend(&resource).is_none() {
            return self.finish(order).await;
        }
        let depth = if fresh { Depth::BeforeSecrets } else { Depth::Full };
        self.converge(offering, Some(order), resource, depth).await?;
        self.finish(order).await
    }

    /// Looks, plans and applies until a look finds nothing left to do.
    pub(crate) async fn converge(
        &self,
        offering: &OfferingConfig,
        order: Option<&Order>,
        resource: Resource,
        depth: Depth,
    ) -> Result<Observed, Failure> {
        let id = resource.uuid;
        let mut seen = self.observe(resource, offering.uuid, depth).await?;
        let mut left = Vec::new();
        for _ in 0..ROUNDS {
            let catalogue = self.catalogue().ok_or_else(|| Failure::Conflict { message: "no catalogue could be read yet".into() })?;
            let rules = self.rules(offering, &catalogue);
            let actions = plan_for(&rules, order, &seen)?;
            if seen.secrets.is_none() {
                self.apply(id, &actions).await?;
                self.observe_secrets(&mut seen).await?;
                continue;
            }
            if actions.is_empty() {
                return Ok(seen);
            }
            let storing = actions.iter().all(|action| matches!(action, Action::StoreSecret(_) | Action::ReplaceSecret { .. }));
            let outcome = self.apply(id, &actions).await;
            left = actions;
            match outcome {
                Ok(()) if storing => {
                    self.observe_secrets(&mut seen).await?;
                    if !stored_what_was_planned(&left, &seen) {
                        let foreign = foreign_secret(&left);
                        for draft in drafts(&left).filter(|draft| !is_stored(&seen, draft)) {
                            self.secrets.tell_foreign(draft.alias.slot, draft.project, &draft.name, &foreign.to_string());
                        }
                        return Err(foreign.into());
                    }
                }
                // Whoever lost the Lease leaves the rest to another.
                Err(failure) if !self.is_leading() => return Err(failure),
                Ok(()) | Err(Failure::Conflict { .. }) => {
                    let resource = self.waldur.resource(id).await?;
                    // Somebody may have begun to end it meanwhile, or another order.
                    let goes_on = match order {
                        Some(_) => resource.state != ResourceState::Terminating,
                        None => matches!(resource.state, ResourceState::Ok | ResourceState::Erred),
                    };
                    if !goes_on {
                        let message = format!("resource {} became {} while it was worked on", id.simple(), resource.state);
                        return Err(Failure::Conflict { message });
                    }
                    seen = self.observe(resource, offering.uuid, Depth::Full).await?;
                }
                Err(failure) => return Err(failure),
            }
        }
        let left: Vec<String> = left.iter().map(ToString::to_string).collect();
        let message = format!(
            "the peers do not keep what is written ({}); is there a default_team_params or upperbound_key_generate_params setting, or another writer?",
            left.join("; ")
        );
        self.conditions.raise("not-kept", id.simple(), format!("resource {}: {message}", id.simple()));
        Err(Failure::Transient { peer: Peer::Gateway, message, retry_after: None, unreachable: false })
    }

    /// Reads the order once more and ends it, if it is still ours to end.
    async fn finish(&self, order: &Order) -> Result<Turn, Failure> {
        let now = self.waldur.order(order.uuid).await?;
        match now.state {
            OrderState::Executing => {
                self.must_lead()?;
                self.waldur.set_order_done(order.uuid).await?;
                Ok(Turn::Done)
            }
            OrderState::Done => Ok(Turn::Done),
            state => Ok(Turn::Ended(state)),
        }
    }

    /// Block, drain, bill, remove, prove, end. Every wait gives its worker back, and a restart goes on where this stopped.
    async fn terminate(&self, order: &Order, resource: Resource) -> Result<Turn, Failure> {
        let (id, offering) = (resource.uuid, order.offering.unwrap_or_default());
        let mut resource = resource;
        for _ in 0..ROUNDS {
            let seen = self.observe_for_removal(resource).await?;
            let left = match plan_removal(&self.config.owner, &seen, self.clock.now(), self.config.terminate.drain)? {
                Removal::Block(actions) => {
                    // Calls were possible until now, so that what was read and told of this end before is not the last of it.
                    self.forget_final_usage(order.uuid);
                    self.apply(id, &actions).await?;
                    resource = seen.resource;
                    continue;
                }
                Removal::Drain(until) => return Ok(Turn::Waits(until, "calls in flight and their rows are waited out")),
                Removal::Bill { since, then } => {
                    let now = self.clock.now();
                    let billed = self.memory().billed.contains(&order.uuid);
                    // A team that was removed by hand cannot tell when its last call was: its rows are waited for all the same.
                    let ordered = order.created.filter(|created| seen.team.is_none() && !billed && *created <= now);
                    if let Some(until) = ordered.map(|created| after(created, self.config.terminate.drain)).filter(|until| now < *until) {
                        return Ok(Turn::Waits(until, "the last rows of a team that is gone are waited for"));
                    }
                    if !billed {
                        if let Some(wait) = self.bill(order, offering, &seen.resource, since).await? {
                            return Ok(Turn::Waits(after(self.clock.now(), wait), "the final usage is read twice"));
                        }
                        self.memory().billed.insert(order.uuid);
                    }
                    then
                }
                Removal::Remove(actions) => actions,
                Removal::Nothing => Vec::new(),
            };
            if left.is_empty() {
                return self.finish_terminated(order, id).await;
            }
            if let Some(state) = self.ended_meanwhile(order).await? {
                return Ok(Turn::Ended(state));
            }
            self.apply(id, &left).await?;
            resource = seen.resource;
        }
        Err(Failure::Conflict {
            message: format!("resource {} is not gone after {ROUNDS} attempts to remove what is left of it", id.simple()),
        })
    }

    /// The state in which somebody else left an order that was executing, if so. Asked before what cannot be undone: a resource
    /// whose end is called off keeps its keys.
    async fn ended_meanwhile(&self, order: &Order) -> Result<Option<OrderState>, Failure> {
        let now = self.waldur.order(order.uuid).await?;
        Ok((now.state != OrderState::Executing).then_some(now.state))
    }

    async fn finish_terminated(&self, order: &Order, resource: Uuid) -> Result<Turn, Failure> {
        self.prove_absence(resource).await?;
        self.finish(order).await
    }

    /// Nothing is gone before the gateway says so with its database connected, before and after.
    async fn prove_absence(&self, resource: Uuid) -> Result<(), Failure> {
        let team = crate::domain::team_id(resource);
        let healthy = async || -> Result<(), Failure> {
            let readiness = self.gateway.readiness().await?;
            if readiness.db_connected {
                return Ok(());
            }
            let message = "the gateway has no database, so it cannot be proven that the team is gone".to_owned();
            Err(Failure::Transient { peer: Peer::Gateway, message, retry_after: None, unreachable: false })
        };
        healthy().await?;
        let there = self.gateway.team(&team).await?.is_some();
        healthy().await?;
        if there { Err(Failure::Conflict { message: format!("team {team} is still there") }) } else { Ok(()) }
    }

    /// How an erred order is taken up again on this server.
    pub(crate) async fn take_up_again(&self, order: Uuid) -> Result<(), Failure> {
        self.must_lead()?;
        if self.features.worth_trying(Feature::Retry) {
            match self.waldur.retry_order(order).await {
                Ok(()) => {
                    self.features.learn(Feature::Retry, true);
                    return Ok(());
                }
                Err(error) if error.class() == waldur_client::Class::NoSuchRoute => {
                    self.features.learn(Feature::Retry, false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.waldur.set_order_executing(order).await?)
    }
}

/// Over, and nothing came of it.
fn ended_without_success(state: &OrderState) -> bool {
    matches!(state, OrderState::Erred | OrderState::Canceled | OrderState::Rejected)
}

/// The plan of one look.
fn plan_for(rules: &Rules<'_>, order: Option<&Order>, seen: &Observed) -> Result<Vec<Action>, Obstacle> {
    if let Some(obstacle) = seen.foreign(rules.owner) {
        return Err(obstacle);
    }
    let held = seen.team.as_ref().map(|team| team.models.as_slice()).unwrap_or_default();
    let wanted = wanted_access(rules, &seen.resource, order, held)?;
    plan_access(rules, &wanted, seen)
}

/// An update that asks for what the resource already has.
fn changes_nothing(order: &Order, resource: &Resource) -> bool {
    let same_limits = order.limits.is_empty() || order.limits == resource.limits;
    same_limits && !order.attributes.contains_key("new_options")
}

/// Whether every slot that was stored can be read back as ours.
fn stored_what_was_planned(actions: &[Action], seen: &Observed) -> bool {
    drafts(actions).all(|draft| is_stored(seen, draft))
}

fn is_stored(seen: &Observed, draft: &SecretDraft) -> bool {
    seen.secrets.iter().flat_map(|listed| &listed.stored).any(|stored| stored.connection.slot == draft.alias.slot)
}

fn drafts(actions: &[Action]) -> impl Iterator<Item = &SecretDraft> {
    actions.iter().filter_map(|action| match action {
        Action::StoreSecret(draft) | Action::ReplaceSecret { draft, .. } => Some(draft),
        _ => None,
    })
}

fn foreign_secret(actions: &[Action]) -> Obstacle {
    Obstacle::ForeignSecret { name: drafts(actions).map(|draft| draft.name.clone()).collect::<Vec<_>>().join(" or ") }
}

/// Which attempt an error message of ours speaks of; 0 for anything else.
pub(crate) fn attempt_of(message: &str) -> u32 {
    let after = message.strip_prefix(OUR_ERROR).and_then(|rest| rest.split_once("(attempt ")).map(|(_, rest)| rest);
    after.and_then(|rest| rest.split(' ').next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// A count as a metric value.
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float; counts are far below 2^53")]
pub(crate) fn count(n: usize) -> f64 {
    n as f64
}

/// `interval` give or take a tenth, so that several agents and loops do not stay in step.
pub(crate) fn jittered(interval: Duration) -> Duration {
    let mut byte = [0_u8; 1];
    if getrandom::fill(&mut byte).is_err() {
        return interval;
    }
    let millis = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
    let tenth = millis / 10;
    Duration::from_millis(millis - tenth + tenth.saturating_mul(2).saturating_mul(u64::from(byte[0])) / 255)
}
