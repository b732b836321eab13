//! Orders: what customers ask for, and the provider's answers.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::client::Client;
use crate::error::Result;
use crate::lenient;
use crate::models::{Limits, server_words};
use crate::page::Row;

server_words! {
    /// State of an order.
    OrderState {
        /// Waits for the customer's own approval.
        PendingConsumer = "pending-consumer",
        /// Waits for us.
        PendingProvider = "pending-provider",
        /// Waits for its project to begin.
        PendingProject = "pending-project",
        /// Waits for its start date.
        PendingStartDate = "pending-start-date",
        /// Approved; we work on it.
        Executing = "executing",
        /// Carried out.
        Done = "done",
        /// Failed.
        Erred = "erred",
        /// Withdrawn.
        Canceled = "canceled",
        /// Refused.
        Rejected = "rejected",
    }
}

server_words! {
    /// What an order asks for.
    OrderKind {
        /// A new resource.
        Create = "Create",
        /// Other limits, plan or options.
        Update = "Update",
        /// The end of the resource.
        Terminate = "Terminate",
        /// A terminated resource back (late 2026).
        Restore = "Restore",
    }
}

/// An order.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Order {
    /// Its uuid.
    #[serde(deserialize_with = "lenient::uuid")]
    pub uuid: Uuid,
    /// Its state.
    #[serde(default)]
    pub state: OrderState,
    /// What it asks for.
    #[serde(default, rename = "type")]
    pub kind: OrderKind,
    /// The marketplace resource (`marketplace_resource_uuid`; the server's `resource_uuid` is something else).
    #[serde(default, rename = "marketplace_resource_uuid", deserialize_with = "lenient::opt_uuid")]
    pub resource: Option<Uuid>,
    /// The offering.
    #[serde(default, rename = "offering_uuid", deserialize_with = "lenient::opt_uuid")]
    pub offering: Option<Uuid>,
    /// Form fields of the order, as the customer filled them in.
    #[serde(default, deserialize_with = "lenient::map")]
    pub attributes: Map<String, Value>,
    /// Limits asked for; empty where the order is not about limits.
    #[serde(default, deserialize_with = "lenient::decimals")]
    pub limits: Limits,
    /// The plan.
    #[serde(default, rename = "plan_uuid", deserialize_with = "lenient::opt_uuid")]
    pub plan: Option<Uuid>,
    /// The customer's project.
    #[serde(default, rename = "project_uuid", deserialize_with = "lenient::opt_uuid")]
    pub project: Option<Uuid>,
    /// Its slug.
    #[serde(default, deserialize_with = "lenient::text")]
    pub project_slug: String,
    /// Its name.
    #[serde(default, deserialize_with = "lenient::text")]
    pub project_name: String,
    /// The customer.
    #[serde(default, rename = "customer_uuid", deserialize_with = "lenient::opt_uuid")]
    pub customer: Option<Uuid>,
    /// Its slug.
    #[serde(default, deserialize_with = "lenient::text")]
    pub customer_slug: String,
    /// When it was made.
    #[serde(default, deserialize_with = "lenient::opt_time")]
    pub created: Option<Timestamp>,
    /// Why it erred.
    #[serde(default, deserialize_with = "lenient::text")]
    pub error_message: String,
    /// Name of the resource.
    #[serde(default, deserialize_with = "lenient::text")]
    pub resource_name: String,
}

/// The server's names of what [`Order`] reads; an order in full is about four times as large.
const FIELDS: [&str; 16] = [
    "uuid",
    "state",
    "type",
    "marketplace_resource_uuid",
    "offering_uuid",
    "attributes",
    "limits",
    "plan_uuid",
    "project_uuid",
    "project_slug",
    "project_name",
    "customer_uuid",
    "customer_slug",
    "created",
    "error_message",
    "resource_name",
];

impl Row for Order {
    fn id(&self) -> Option<Uuid> {
        Some(self.uuid)
    }
}

impl Client {
    /// All orders of an offering in the given states; in any state where none is given. A 2024 server refuses states
    /// it does not know with 400.
    ///
    /// # Errors
    /// Any; the list is whole or an error.
    pub async fn orders(&self, offering: Uuid, states: &[OrderState]) -> Result<Vec<Order>> {
        let mut orders = self.orders_by("offering_uuid", offering, states).await?;
        // A server that does not know a filter answers as if it were not there.
        orders.retain(|order| order.offering.is_none_or(|of| of == offering));
        Ok(orders)
    }

    /// All orders of a resource in the given states; in any state where none is given.
    ///
    /// # Errors
    /// Any; the list is whole or an error.
    pub async fn orders_of_resource(&self, resource: Uuid, states: &[OrderState]) -> Result<Vec<Order>> {
        let mut orders = self.orders_by("resource_uuid", resource, states).await?;
        orders.retain(|order| order.resource.is_none_or(|of| of == resource));
        Ok(orders)
    }

    async fn orders_by(&self, filter: &'static str, uuid: Uuid, states: &[OrderState]) -> Result<Vec<Order>> {
        let mut query = vec![(filter, uuid.simple().to_string())];
        query.extend(states.iter().map(|state| ("state", state.to_string())));
        query.extend(FIELDS.map(|field| ("field", field.to_owned())));
        self.moving_list("marketplace-orders/", &query).await
    }

    /// One order.
    ///
    /// # Errors
    /// [`Class::NotFound`](crate::Class::NotFound) when there is none or it is not visible to us.
    pub async fn order(&self, uuid: Uuid) -> Result<Order> {
        let path = format!("marketplace-orders/{}/", uuid.simple());
        self.get(&path, &FIELDS.map(|field| ("field", field.to_owned()))).await
    }

    /// Accepts an order: pending-provider → executing (or pending-start-date on a late-2026 server).
    ///
    /// Gives whether the answer had a body. A 2024 server sends none and begins at once; after true, read the order to
    /// see whether it executes. A hint only: something in between may drop the body of a later server.
    ///
    /// # Errors
    /// [`Class::Conflict`](crate::Class::Conflict) in another state.
    pub async fn approve_order(&self, uuid: Uuid) -> Result<bool> {
        let path = format!("marketplace-orders/{}/approve_by_provider/", uuid.simple());
        let answer = self.post_secret(&path, &json!({}), &[]).await?;
        Ok(!answer.is_empty())
    }

    /// Refuses an order. The comment is for the customer; a 2024 server drops it.
    ///
    /// # Errors
    /// [`Class::Conflict`](crate::Class::Conflict) in another state.
    pub async fn reject_order(&self, uuid: Uuid, comment: &str) -> Result<()> {
        let body = json!({"provider_rejection_comment": comment});
        self.order_action(uuid, "reject_by_provider", body).await
    }

    /// Takes an order up again: pending or erred → executing.
    ///
    /// # Errors
    /// [`Class::Conflict`](crate::Class::Conflict) in another state.
    pub async fn set_order_executing(&self, uuid: Uuid) -> Result<()> {
        self.order_action(uuid, "set_state_executing", json!({})).await
    }

    /// Reports an order as carried out. Usage of a terminated resource is refused from then on.
    ///
    /// # Errors
    /// [`Class::Conflict`](crate::Class::Conflict) unless executing.
    pub async fn set_order_done(&self, uuid: Uuid) -> Result<()> {
        self.order_action(uuid, "set_state_done", json!({})).await
    }

    /// Reports an order as failed. Both texts are always sent: a 2024 server crashes when one is missing. It works from
    /// any state, done included, so look at the state first.
    ///
    /// # Errors
    /// Any.
    pub async fn set_order_erred(&self, uuid: Uuid, message: &str, traceback: &str) -> Result<()> {
        let body = json!({"error_message": message, "error_traceback": traceback});
        self.order_action(uuid, "set_state_erred", body).await
    }

    /// Takes an erred order up again on a late-2026 server.
    ///
    /// # Errors
    /// [`Class::NoSuchRoute`](crate::Class::NoSuchRoute) on older servers.
    pub async fn retry_order(&self, uuid: Uuid) -> Result<()> {
        self.order_action(uuid, "retry", json!({})).await
    }

    async fn order_action(&self, uuid: Uuid, action: &str, body: Value) -> Result<()> {
        let path = format!("marketplace-orders/{}/{action}/", uuid.simple());
        self.post(&path, &body).await
    }
}
