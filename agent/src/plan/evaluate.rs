//! Whether a pending order is accepted, before anything is made for it.

use uuid::Uuid;
use waldur_client::{Order, OrderKind, Resource};

use super::Rules;
use crate::config::{ApprovalMode, OfferingConfig};
use crate::domain::{ModelRequest, effective_limits};

/// What to do with a pending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Approve it.
    Approve,
    /// Reject it with this comment, which the customer reads.
    Reject(String),
    /// A person decides; no write.
    Manual,
    /// Nothing the agent knows; no write.
    Ignore,
}

/// Judges a pending order. `resource` is Waldur's view of the resource, where one was read (updates and restores).
#[must_use]
pub fn evaluate(rules: &Rules<'_>, order: &Order, resource: Option<&Resource>) -> Verdict {
    match approval(rules.offering, &order.kind) {
        None => return Verdict::Ignore,
        Some(ApprovalMode::Manual) => return Verdict::Manual,
        Some(ApprovalMode::Auto) => {}
    }
    let problems = match &order.kind {
        OrderKind::Terminate | OrderKind::Other(_) => Vec::new(),
        OrderKind::Create => {
            let mut problems = check_models(rules, &ModelRequest::read([&order.attributes]));
            problems.extend(check_limits(rules, &order.limits));
            problems
        }
        OrderKind::Restore | OrderKind::Update => {
            let mut problems = new_options(order).map(|options| check_models(rules, &ModelRequest::read([options]))).unwrap_or_default();
            let limits = if order.limits.is_empty() { resource.map(|r| &r.limits) } else { Some(&order.limits) };
            problems.extend(limits.map(|limits| check_limits(rules, limits)).unwrap_or_default());
            problems
        }
    };
    if problems.is_empty() { Verdict::Approve } else { Verdict::Reject(comment(order.uuid, &problems)) }
}

/// How orders of this kind are approved; `None` for kinds the agent does not know.
pub(crate) fn approval(offering: &OfferingConfig, kind: &OrderKind) -> Option<ApprovalMode> {
    match kind {
        OrderKind::Create | OrderKind::Restore => Some(offering.approval.create),
        OrderKind::Update => Some(offering.approval.update),
        OrderKind::Terminate => Some(offering.approval.terminate),
        OrderKind::Other(_) => None,
    }
}

/// The options that an update carries, where it changes options.
pub(crate) fn new_options(order: &Order) -> Option<&serde_json::Map<String, serde_json::Value>> {
    order.attributes.get("new_options")?.as_object()
}

fn check_models(rules: &Rules<'_>, request: &ModelRequest) -> Vec<String> {
    request
        .check(rules.catalogue.orderable(), &rules.offering.always_include)
        .err()
        .map(|p| format!("Models: {}.", p.0))
        .into_iter()
        .collect()
}

fn check_limits(rules: &Rules<'_>, limits: &waldur_client::Limits) -> Vec<String> {
    match effective_limits(limits, rules.catalogue.max_budget, &rules.offering.limits) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.into_iter().map(|p| format!("Limits: {p}.")).collect(),
    }
}

fn comment(order: Uuid, problems: &[String]) -> String {
    let reference = crate::domain::reference(order, "evaluate");
    format!("This order cannot be accepted. {} Please order again with this changed. Reference: {reference}", problems.join(" "))
}
