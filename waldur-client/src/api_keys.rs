//! API keys of a resource as the customer sees them (servers from 8.1 on).

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::client::Client;
use crate::error::Result;
use crate::lenient;
use crate::models::server_words;
use crate::page::Row;

server_words! {
    /// State of an API key.
    ApiKeyState {
        /// Asked for by the customer, not yet made.
        Creating = "Creating",
        /// In use.
        Ok = "OK",
        /// A change was asked for.
        Updating = "Updating",
        /// Must not be usable for now.
        Paused = "Paused",
        /// Its end was asked for.
        Deleting = "Deleting",
        /// Gone; its client id is never taken again.
        Deleted = "Deleted",
        /// The last change failed.
        Erred = "Erred",
    }
}

/// An API key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct ApiKey {
    /// Its uuid.
    #[serde(deserialize_with = "lenient::uuid")]
    pub uuid: Uuid,
    /// The resource.
    #[serde(default, rename = "resource_uuid", deserialize_with = "lenient::opt_uuid")]
    pub resource: Option<Uuid>,
    /// Our name for it, unique for ever.
    #[serde(default, deserialize_with = "lenient::text")]
    pub client_id: String,
    /// Its state.
    #[serde(default)]
    pub state: ApiKeyState,
}

impl Row for ApiKey {
    fn id(&self) -> Option<Uuid> {
        Some(self.uuid)
    }
}

/// Which API keys to list; none of both is all that we may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ApiKeyFilter {
    /// Keys of one offering.
    pub offering: Option<Uuid>,
    /// Keys of one resource.
    pub resource: Option<Uuid>,
}

/// Body of `report_created`. Not `Debug`, since it holds the key.
#[derive(Serialize)]
struct Created<'a> {
    resource: String,
    client_id: &'a str,
    api_key: &'a str,
}

impl Client {
    /// API keys in all states, Deleted included.
    ///
    /// # Errors
    /// [`Class::NoSuchRoute`](crate::Class::NoSuchRoute) on servers that have no API keys.
    pub async fn api_keys(&self, filter: ApiKeyFilter) -> Result<Vec<ApiKey>> {
        let mut query = Vec::new();
        if let Some(offering) = filter.offering {
            query.push(("offering_uuid", offering.simple().to_string()));
        }
        if let Some(resource) = filter.resource {
            query.push(("resource_uuid", resource.simple().to_string()));
        }
        let mut keys: Vec<ApiKey> = self.list("marketplace-resource-api-keys/", &query).await?;
        // A server that does not know a filter answers as if it were not there.
        if let Some(resource) = filter.resource {
            keys.retain(|key| key.resource.is_none_or(|of| of == resource));
        }
        Ok(keys)
    }

    /// Hands a key that we made to the customer. Safe to repeat with the same client id and key.
    ///
    /// # Errors
    /// [`Class::NoSuchRoute`](crate::Class::NoSuchRoute) on servers that have no API keys.
    pub async fn report_api_key_created(&self, resource: Uuid, client_id: &str, key: &SecretString) -> Result<()> {
        let body = Created { resource: resource.simple().to_string(), client_id, api_key: key.expose_secret() };
        self.post_secret("marketplace-resource-api-keys/report_created/", &body, &[key]).await.map(drop)
    }
}
