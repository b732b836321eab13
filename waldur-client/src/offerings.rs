//! The offering: what is sold, in which components, at which prices.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::ser::{Error as _, SerializeMap};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::client::Client;
use crate::error::Result;
use crate::lenient;
use crate::models::server_words;

server_words! {
    /// How a component is charged.
    BillingType {
        /// By the plan's quota, every period.
        Fixed = "fixed",
        /// By reported usage.
        Usage = "usage",
        /// By the limit the customer chose.
        Limit = "limit",
        /// Once, at the start.
        One = "one",
        /// Once, at a change of plan.
        Few = "few",
    }
}

/// An offering as its provider sees it.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Offering {
    /// Its uuid.
    #[serde(deserialize_with = "lenient::uuid")]
    pub uuid: Uuid,
    /// Its name.
    #[serde(default, deserialize_with = "lenient::text")]
    pub name: String,
    /// `Draft`, `Active`, `Paused`, `Archived`, …
    #[serde(default, deserialize_with = "lenient::text")]
    pub state: String,
    /// Plugin it belongs to (the server's `type`), e.g. `Marketplace.Slurm`.
    #[serde(default, rename = "type", deserialize_with = "lenient::text")]
    pub kind: String,
    /// The provider.
    #[serde(default, rename = "customer_uuid", deserialize_with = "lenient::opt_uuid")]
    pub customer: Option<Uuid>,
    /// What is counted and charged.
    #[serde(default, deserialize_with = "lenient::list")]
    pub components: Vec<Component>,
    /// Order form: `{"order": […], "options": {…}}`.
    #[serde(default, deserialize_with = "lenient::value")]
    pub options: Value,
    /// Options that can be changed on a resource, same shape.
    #[serde(default, deserialize_with = "lenient::value")]
    pub resource_options: Value,
    /// Switches of the plugin.
    #[serde(default, deserialize_with = "lenient::map")]
    pub plugin_options: Map<String, Value>,
    /// Our notes on the offering.
    #[serde(default, deserialize_with = "lenient::map")]
    pub backend_metadata: Map<String, Value>,
    /// Price lists.
    #[serde(default, deserialize_with = "lenient::list")]
    pub plans: Vec<Plan>,
}

/// A component of an offering.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Component {
    /// Its uuid.
    #[serde(default, deserialize_with = "lenient::opt_uuid")]
    pub uuid: Option<Uuid>,
    /// Its key within the offering (the server's `type`).
    #[serde(default, rename = "type", deserialize_with = "lenient::text")]
    pub kind: String,
    /// Name shown to customers.
    #[serde(default, deserialize_with = "lenient::text")]
    pub name: String,
    /// Text shown to customers.
    #[serde(default, deserialize_with = "lenient::text")]
    pub description: String,
    /// How it is charged.
    #[serde(default)]
    pub billing_type: BillingType,
    /// Unit of amounts, e.g. `1k tokens`.
    #[serde(default, deserialize_with = "lenient::text")]
    pub measured_unit: String,
    /// Period a limit is for, e.g. `month`; empty where there is none.
    #[serde(default, deserialize_with = "lenient::text")]
    pub limit_period: String,
    /// Most usage accepted per period.
    #[serde(default, deserialize_with = "lenient::opt_decimal")]
    pub limit_amount: Option<Decimal>,
    /// Least limit a customer may choose.
    #[serde(default, deserialize_with = "lenient::opt_decimal")]
    pub min_value: Option<Decimal>,
    /// Largest limit a customer may choose.
    #[serde(default, deserialize_with = "lenient::opt_decimal")]
    pub max_value: Option<Decimal>,
    /// Limit the order form starts with.
    #[serde(default, deserialize_with = "lenient::opt_decimal")]
    pub default_limit: Option<Decimal>,
    /// Has a spending limit per day or week, so that the server wants usage by day (late 2026).
    #[serde(default, rename = "spending_limit_periods", deserialize_with = "lenient::filled")]
    pub by_day: bool,
    /// Belongs to the plugin and cannot be removed.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub is_builtin: bool,
}

/// A price list of an offering.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct Plan {
    /// Its uuid.
    #[serde(deserialize_with = "lenient::uuid")]
    pub uuid: Uuid,
    /// Its name.
    #[serde(default, deserialize_with = "lenient::text")]
    pub name: String,
    /// No longer offered.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub archived: bool,
    /// Prices in force, by component type.
    #[serde(default, deserialize_with = "lenient::decimals")]
    pub prices: BTreeMap<String, Decimal>,
    /// Prices from the first of next month; only components whose price will change.
    #[serde(default, deserialize_with = "lenient::decimals")]
    pub future_prices: BTreeMap<String, Decimal>,
    /// How many resources use it; with any, new prices wait for the first of next month.
    #[serde(default, deserialize_with = "lenient::opt_decimal")]
    pub resources_count: Option<Decimal>,
}

/// A component to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NewComponent {
    /// Its key within the offering: `[A-Za-z0-9_/:-]`, at most 50 characters.
    #[serde(rename = "type")]
    pub kind: String,
    /// The rest.
    #[serde(flatten)]
    pub details: ComponentChange,
}

/// What may be set on a component; what is none stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ComponentChange {
    /// Name shown to customers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Text shown to customers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How it is charged. A change on a component in use reroutes its history: not for those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub billing_type: Option<BillingType>,
    /// Unit of amounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_unit: Option<String>,
    /// Period a limit is for: `month`, `annual`, `total`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_period: Option<String>,
    /// Least limit a customer may choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_value: Option<i64>,
    /// Largest limit a customer may choose; `Some(None)` takes it away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_value: Option<Option<i64>>,
    /// Limit the order form starts with; `Some(None)` takes it away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_limit: Option<Option<i64>>,
}

impl Client {
    /// One offering with its components, options and plans.
    ///
    /// # Errors
    /// [`Class::NotFound`](crate::Class::NotFound) when there is none or it is not visible to us.
    pub async fn offering(&self, uuid: Uuid) -> Result<Offering> {
        let path = format!("marketplace-provider-offerings/{}/", uuid.simple());
        self.get(&path, &[]).await
    }

    /// Makes a component. The server answers nothing: read its uuid from the offering.
    ///
    /// # Errors
    /// A type that exists is 400 on late servers and 500 on a 2024 one: look first.
    pub async fn create_component(&self, offering: Uuid, component: &NewComponent) -> Result<()> {
        self.offering_action(offering, "create_offering_component", component).await
    }

    /// Changes what is set in `change`; the type stays.
    ///
    /// # Errors
    /// [`Class::NotFound`](crate::Class::NotFound) when there is no such component.
    pub async fn update_component(&self, offering: Uuid, component: Uuid, change: &ComponentChange) -> Result<()> {
        #[derive(Serialize)]
        struct Body<'a> {
            uuid: String,
            #[serde(flatten)]
            change: &'a ComponentChange,
        }
        let body = Body { uuid: component.simple().to_string(), change };
        self.offering_action(offering, "update_offering_component", &body).await
    }

    /// Removes a component and with it its usage history.
    ///
    /// # Errors
    /// [`Class::Refused`](crate::Class::Refused) with a text under `details` as soon as the offering has any resource;
    /// [`Class::NotFound`](crate::Class::NotFound) when it is gone already.
    pub async fn remove_component(&self, offering: Uuid, component: Uuid) -> Result<()> {
        let body = json!({"uuid": component.simple().to_string()});
        self.offering_action(offering, "remove_offering_component", &body).await
    }

    /// Replaces the order form.
    ///
    /// # Errors
    /// Any.
    pub async fn set_offering_options(&self, offering: Uuid, options: &Value) -> Result<()> {
        let body = json!({"options": options});
        self.offering_action(offering, "update_options", &body).await
    }

    /// Replaces the options that can be changed on a resource.
    ///
    /// # Errors
    /// Any.
    pub async fn set_resource_options(&self, offering: Uuid, options: &Value) -> Result<()> {
        let body = json!({"resource_options": options});
        self.offering_action(offering, "update_resource_options", &body).await
    }

    /// Replaces our notes on the offering: read, merge, write.
    ///
    /// # Errors
    /// Any.
    pub async fn set_offering_metadata(&self, offering: Uuid, metadata: &Map<String, Value>) -> Result<()> {
        let body = json!({"backend_metadata": metadata});
        self.offering_action(offering, "set_backend_metadata", &body).await
    }

    /// One plan with its prices.
    ///
    /// # Errors
    /// [`Class::NotFound`](crate::Class::NotFound) when there is none or it is not visible to us.
    pub async fn plan(&self, uuid: Uuid) -> Result<Plan> {
        let path = format!("marketplace-plans/{}/", uuid.simple());
        self.get(&path, &[]).await
    }

    /// Sets the prices of a plan, at most ten decimals each. The map must be the whole map: the server sets a price it
    /// does not find to zero. A zero may be ignored; read back.
    ///
    /// # Errors
    /// [`Class::Refused`](crate::Class::Refused) for unknown components, negative prices or more decimals.
    pub async fn set_prices(&self, plan: Uuid, prices: &BTreeMap<String, Decimal>) -> Result<()> {
        #[derive(Serialize)]
        struct Body<'a> {
            #[serde(serialize_with = "exact_numbers")]
            prices: &'a BTreeMap<String, Decimal>,
        }
        let path = format!("marketplace-plans/{}/update_prices/", plan.simple());
        self.post(&path, &Body { prices }).await
    }

    async fn offering_action<B: Serialize + ?Sized>(&self, offering: Uuid, action: &str, body: &B) -> Result<()> {
        let path = format!("marketplace-provider-offerings/{}/{action}/", offering.simple());
        self.post(&path, body).await
    }
}

/// Writes amounts as JSON numbers with all their digits and no trailing zeros, so that whole amounts are integers.
pub(crate) fn exact_numbers<S: Serializer>(amounts: &BTreeMap<String, Decimal>, to: S) -> Result<S::Ok, S::Error> {
    let mut map = to.serialize_map(Some(amounts.len()))?;
    for (key, amount) in amounts {
        let number = RawValue::from_string(amount.normalize().to_string()).map_err(S::Error::custom)?;
        map.serialize_entry(key, &number)?;
    }
    map.end()
}
