//! Resources: what a customer has after a create order.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::client::Client;
use crate::error::Result;
use crate::lenient;
use crate::models::{Endpoint, Limits, ReportSection, server_words};
use crate::offerings::exact_numbers;
use crate::page::Row;

server_words! {
    /// State of a resource.
    ResourceState {
        /// Its create order is not done.
        Creating = "Creating",
        /// In use.
        Ok = "OK",
        /// Its last create or update order failed.
        Erred = "Erred",
        /// An update order is under way.
        Updating = "Updating",
        /// A terminate order is under way.
        Terminating = "Terminating",
        /// Gone; the row stays.
        Terminated = "Terminated",
    }
}

/// A resource.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Resource {
    /// Its uuid.
    #[serde(deserialize_with = "lenient::uuid")]
    pub uuid: Uuid,
    /// Its state.
    #[serde(default)]
    pub state: ResourceState,
    /// Name given by the customer.
    #[serde(default, deserialize_with = "lenient::text")]
    pub name: String,
    /// Short name; can change.
    #[serde(default, deserialize_with = "lenient::text")]
    pub slug: String,
    /// Our id for it; empty until it was set.
    #[serde(default, deserialize_with = "lenient::text")]
    pub backend_id: String,
    /// Limits in force.
    #[serde(default, deserialize_with = "lenient::decimals")]
    pub limits: Limits,
    /// Options in force. Null on a 2024 server until changed, which reads as empty.
    #[serde(default, deserialize_with = "lenient::map")]
    pub options: Map<String, Value>,
    /// Form fields of the create order.
    #[serde(default, deserialize_with = "lenient::map")]
    pub attributes: Map<String, Value>,
    /// Must not be usable for now.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub paused: bool,
    /// Must be usable less for now.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub downscaled: bool,
    /// The offering.
    #[serde(default, rename = "offering_uuid", deserialize_with = "lenient::opt_uuid")]
    pub offering: Option<Uuid>,
    /// The plan.
    #[serde(default, rename = "plan_uuid", deserialize_with = "lenient::opt_uuid")]
    pub plan: Option<Uuid>,
    /// The customer's project.
    #[serde(default, rename = "project_uuid", deserialize_with = "lenient::opt_uuid")]
    pub project: Option<Uuid>,
    /// Its name.
    #[serde(default, deserialize_with = "lenient::text")]
    pub project_name: String,
    /// The customer.
    #[serde(default, rename = "customer_uuid", deserialize_with = "lenient::opt_uuid")]
    pub customer: Option<Uuid>,
    /// Its name.
    #[serde(default, deserialize_with = "lenient::text")]
    pub customer_name: String,
    /// Our notes on it; customers can see them.
    #[serde(default, deserialize_with = "lenient::map")]
    pub backend_metadata: Map<String, Value>,
    /// Addresses shown to the customer.
    #[serde(default, deserialize_with = "lenient::loose_list")]
    pub endpoints: Vec<Endpoint>,
    /// Report shown to the customer.
    #[serde(default, deserialize_with = "lenient::loose_list")]
    pub report: Vec<ReportSection>,
    /// Why it is erred.
    #[serde(default, deserialize_with = "lenient::text")]
    pub error_message: String,
}

/// The server's names of what [`Resource`] reads; in full each row repeats its offering and its create order.
const FIELDS: [&str; 20] = [
    "uuid",
    "state",
    "name",
    "slug",
    "backend_id",
    "limits",
    "options",
    "attributes",
    "paused",
    "downscaled",
    "offering_uuid",
    "plan_uuid",
    "project_uuid",
    "project_name",
    "customer_uuid",
    "customer_name",
    "backend_metadata",
    "endpoints",
    "report",
    "error_message",
];

impl Row for Resource {
    fn id(&self) -> Option<Uuid> {
        Some(self.uuid)
    }
}

impl Client {
    /// All resources of an offering in the given states; in any state, Terminated included, where none is given.
    ///
    /// An agent that lost its role gets an empty list that adds up: an empty answer is no proof that nothing is there.
    ///
    /// # Errors
    /// Any; the list is whole or an error.
    pub async fn resources(&self, offering: Uuid, states: &[ResourceState]) -> Result<Vec<Resource>> {
        self.resources_as(offering, states, |resource| resource).await
    }

    /// Like [`Client::resources`], keeping of each resource only what `keep` makes of it: there may be ten thousands of them.
    ///
    /// # Errors
    /// As [`Client::resources`].
    pub async fn resources_as<U>(&self, offering: Uuid, states: &[ResourceState], keep: impl Fn(Resource) -> U) -> Result<Vec<U>> {
        let mut query = vec![("offering_uuid", offering.simple().to_string())];
        query.extend(states.iter().map(|state| ("state", state.to_string())));
        query.extend(FIELDS.map(|field| ("field", field.to_owned())));
        // A server that does not know a filter answers as if it were not there.
        let keep = |resource: Resource| resource.offering.is_none_or(|of| of == offering).then(|| keep(resource));
        Ok(self.list_as("marketplace-provider-resources/", &query, keep).await?.into_iter().flatten().collect())
    }

    /// One resource.
    ///
    /// # Errors
    /// [`Class::NotFound`](crate::Class::NotFound) when there is none or it is not visible to us.
    pub async fn resource(&self, uuid: Uuid) -> Result<Resource> {
        let path = format!("marketplace-provider-resources/{}/", uuid.simple());
        self.get(&path, &FIELDS.map(|field| ("field", field.to_owned()))).await
    }

    /// Sets our id for the resource. Setting the same again is no error.
    ///
    /// # Errors
    /// A late-2026 server refuses ids that break the offering's rules.
    pub async fn set_backend_id(&self, resource: Uuid, backend_id: &str) -> Result<()> {
        let body = json!({"backend_id": backend_id});
        self.resource_action(resource, "set_backend_id", &body).await
    }

    /// Replaces our notes on the resource. Customers can see them.
    ///
    /// # Errors
    /// Any.
    pub async fn set_backend_metadata(&self, resource: Uuid, metadata: &Map<String, Value>) -> Result<()> {
        let body = json!({"backend_metadata": metadata});
        self.resource_action(resource, "set_backend_metadata", &body).await
    }

    /// Replaces the report shown to the customer.
    ///
    /// # Errors
    /// The server refuses an empty report with 400.
    pub async fn submit_report(&self, resource: Uuid, report: &[ReportSection]) -> Result<()> {
        let body = json!({"report": report});
        self.resource_action(resource, "submit_report", &body).await
    }

    /// Replaces the addresses shown to the customer (late 2026).
    ///
    /// # Errors
    /// [`Class::NoSuchRoute`](crate::Class::NoSuchRoute) on older servers.
    pub async fn set_endpoints(&self, resource: Uuid, endpoints: &[Endpoint]) -> Result<()> {
        let body = json!({"endpoints": endpoints});
        self.resource_action(resource, "set_endpoints", &body).await
    }

    /// Takes a resource out of Erred (2026).
    ///
    /// # Errors
    /// [`Class::NoSuchRoute`](crate::Class::NoSuchRoute) on a 2024 server.
    pub async fn set_resource_ok(&self, resource: Uuid) -> Result<()> {
        self.resource_action(resource, "set_as_ok", &json!({})).await
    }

    /// Marks a resource as erred.
    ///
    /// # Errors
    /// [`Class::Credential`](crate::Class::Credential) on a 2024 server, where only staff may.
    pub async fn set_resource_erred(&self, resource: Uuid, message: &str, traceback: &str) -> Result<()> {
        let body = json!({"error_message": message, "error_traceback": traceback});
        self.resource_action(resource, "set_as_erred", &body).await
    }

    /// Notes that the resource was looked at just now (2026).
    ///
    /// # Errors
    /// [`Class::NoSuchRoute`](crate::Class::NoSuchRoute) on a 2024 server.
    pub async fn refresh_last_sync(&self, resource: Uuid) -> Result<()> {
        self.resource_action(resource, "refresh_last_sync", &json!({})).await
    }

    /// Replaces all limits of a resource (2026); whole amounts are written as integers.
    ///
    /// # Errors
    /// [`Class::NoSuchRoute`](crate::Class::NoSuchRoute) on a 2024 server.
    pub async fn set_limits(&self, resource: Uuid, limits: &Limits) -> Result<()> {
        #[derive(Serialize)]
        struct Body<'a> {
            #[serde(serialize_with = "exact_numbers")]
            limits: &'a Limits,
        }
        self.resource_action(resource, "set_limits", &Body { limits }).await
    }

    /// Removes the row of a resource without asking anybody (staff only). Its usage history goes with it.
    ///
    /// # Errors
    /// [`Class::Credential`](crate::Class::Credential) for a provider.
    pub async fn unlink_resource(&self, resource: Uuid) -> Result<()> {
        self.resource_action(resource, "unlink", &json!({})).await
    }

    async fn resource_action<B: Serialize + ?Sized>(&self, resource: Uuid, action: &str, body: &B) -> Result<()> {
        let path = format!("marketplace-provider-resources/{}/{action}/", resource.simple());
        self.post(&path, body).await
    }
}
