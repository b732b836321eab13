//! What the loops last saw, kept for people to look at. Nothing is decided by it, and it is kept only where there is a page.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive as _;
use uuid::Uuid;
use waldur_client::{Offering, Order, OrderState};

use crate::config::{ApprovalMode, OfferingConfig};
use crate::observe::World;
use crate::observe::packed::Packed;
use crate::plan::{Notes, Shop, Stage, approval, removable_from, stage};
use crate::usage::budget;
use crate::visible::start;

/// The most orders of one offering that are kept; the oldest.
const MOST_ORDERS: usize = 500;
/// The most resources that are kept; those that have spent the largest share of their budget.
const MOST_RESOURCES: usize = 10_000;
/// The most characters that are kept of a name or message that others chose.
const LONGEST: usize = 300;
const LONGEST_NAME: usize = 80;

/// An open order.
#[derive(Clone, Debug)]
pub(super) struct SeenOrder {
    pub(super) uuid: Uuid,
    pub(super) kind: String,
    pub(super) state: String,
    pub(super) created: Option<Timestamp>,
    pub(super) resource: Option<Uuid>,
    pub(super) name: String,
    pub(super) project: String,
    /// What Waldur shows the customer.
    pub(super) error: String,
    /// It waits for somebody's approval.
    pub(super) by_person: bool,
}

/// The open orders of one offering.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenOrders {
    pub(super) count: usize,
    /// The oldest first.
    pub(super) oldest: Vec<SeenOrder>,
}

/// A resource and its budget.
#[derive(Clone, Debug)]
pub(super) struct SeenResource {
    pub(super) uuid: Uuid,
    pub(super) name: String,
    pub(super) project: String,
    pub(super) state: String,
    pub(super) blocked: bool,
    pub(super) spend: Option<Decimal>,
    pub(super) budget: Option<Decimal>,
    /// In whole percent; nothing without a budget.
    pub(super) share: Option<u32>,
    pub(super) reset: Option<Timestamp>,
    pub(super) overdue: bool,
}

/// The resources of all offerings.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenResources {
    pub(super) count: usize,
    /// How many have spent at least 90 % and at least all of their budget.
    pub(super) nearly_spent: usize,
    pub(super) spent: usize,
    /// The largest share of its budget first.
    pub(super) by_share: Vec<SeenResource>,
}

/// A component that is not sold any more.
#[derive(Clone, Debug)]
pub(super) struct SeenComponent {
    pub(super) kind: String,
    pub(super) stage: Stage,
    pub(super) why: String,
}

#[derive(Debug, Default)]
struct Inner {
    orders: BTreeMap<Uuid, SeenOrders>,
    resources: Arc<SeenResources>,
    components: BTreeMap<Uuid, Vec<SeenComponent>>,
}

/// What the loops last saw.
#[derive(Debug)]
pub struct Seen {
    kept: bool,
    inner: Mutex<Inner>,
}

impl Seen {
    /// Nothing was seen yet; nothing is ever kept unless `kept`.
    #[must_use]
    pub fn new(kept: bool) -> Self {
        Self { kept, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open orders of an offering, the oldest first.
    pub(crate) fn note_orders(&self, offering: &OfferingConfig, orders: &[Order]) {
        if !self.kept {
            return;
        }
        let seen = |order: &Order| SeenOrder {
            uuid: order.uuid,
            kind: start(&order.kind.to_string(), LONGEST_NAME),
            state: start(&order.state.to_string(), LONGEST_NAME),
            created: order.created,
            resource: order.resource,
            name: start(&order.resource_name, LONGEST_NAME),
            project: start(&order.project_name, LONGEST_NAME),
            error: start(&order.error_message, LONGEST),
            by_person: order.state == OrderState::PendingProvider && approval(offering, &order.kind) == Some(ApprovalMode::Manual),
        };
        let seen = SeenOrders { count: orders.len(), oldest: orders.iter().take(MOST_ORDERS).map(seen).collect() };
        self.lock().orders.insert(offering.uuid, seen);
    }

    /// Everything that the resource loop read.
    pub(crate) fn note_world(&self, world: &World, now: Timestamp) {
        if !self.kept {
            return;
        }
        let mut all: Vec<SeenResource> = world
            .resources
            .iter()
            .map(|(id, (_, resource))| {
                let team = world.teams.get(&crate::domain::team_id(*id)).map(Packed::bare);
                let resource = resource.bare();
                SeenResource {
                    uuid: *id,
                    name: start(&resource.name, LONGEST_NAME),
                    project: start(&resource.project_name, LONGEST_NAME),
                    state: start(&resource.state.to_string(), LONGEST_NAME),
                    blocked: team.is_some_and(|team| team.blocked),
                    spend: team.map(|team| team.spend.max(Decimal::ZERO)),
                    budget: team.and_then(|team| team.max_budget),
                    share: team.and_then(budget::share).map(|share| share.to_u32().unwrap_or(u32::MAX)),
                    reset: team.and_then(|team| team.budget_reset_at.filter(|_| team.max_budget.is_some())),
                    overdue: team.is_some_and(|team| budget::is_overdue(team, now)),
                }
            })
            .collect();
        let at_least = |percent: u32| all.iter().filter(|seen| seen.share.is_some_and(|share| share >= percent)).count();
        let (nearly_spent, spent) = (at_least(90), at_least(100));
        all.sort_by(|a, b| (b.share, b.spend).cmp(&(a.share, a.spend)).then_with(|| a.name.cmp(&b.name)));
        let count = all.len();
        all.truncate(MOST_RESOURCES);
        self.lock().resources = Arc::new(SeenResources { count, nearly_spent, spent, by_share: all });
    }

    /// The components of an offering that are not sold any more.
    pub(crate) fn note_components(&self, shop: &Shop<'_>, offering: &Offering) {
        if !self.kept {
            return;
        }
        let notes = Notes::read(offering);
        let stale = offering.components.iter().filter_map(|component| {
            let (kind, note) = (&component.kind, notes.components.get(&component.kind)?);
            let stage = stage(shop, offering, kind);
            let why = match (stage, note.gone) {
                (Stage::Current | Stage::Foreign, _) => return None,
                (Stage::Retired, _) => note.reason.clone(),
                (Stage::Gone, Some(gone)) => {
                    format!("its usage is still reported; to be removed from {}", day(removable_from(gone, shop.late_days)))
                }
                (Stage::Gone, None) => "its model left the catalogue".to_owned(),
                (Stage::Held, _) => "its model is missing from the catalogue; nothing changes before `catalogue.hold` is over".to_owned(),
                (Stage::Unused, _) => "nothing needs it under the present configuration".to_owned(),
            };
            Some(SeenComponent { kind: start(kind, LONGEST_NAME), stage, why: start(&why, LONGEST) })
        });
        let stale = stale.take(MOST_ORDERS).collect();
        self.lock().components.insert(offering.uuid, stale);
    }

    pub(super) fn orders(&self) -> BTreeMap<Uuid, SeenOrders> {
        self.lock().orders.clone()
    }

    pub(super) fn resources(&self) -> Arc<SeenResources> {
        Arc::clone(&self.lock().resources)
    }

    pub(super) fn components(&self) -> BTreeMap<Uuid, Vec<SeenComponent>> {
        self.lock().components.clone()
    }
}

fn day(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d").to_string()
}
