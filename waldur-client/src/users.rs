//! The agent's own user.

use serde::Deserialize;
use uuid::Uuid;

use crate::client::Client;
use crate::error::Result;
use crate::lenient;

/// The user the credential belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct User {
    /// Its uuid.
    #[serde(default, deserialize_with = "lenient::opt_uuid")]
    pub uuid: Option<Uuid>,
    /// Login name.
    #[serde(default, deserialize_with = "lenient::text")]
    pub username: String,
    /// May do everything; the agent does not need it.
    #[serde(default, deserialize_with = "lenient::flag")]
    pub is_staff: bool,
    /// Roles it has.
    #[serde(default, deserialize_with = "lenient::list")]
    pub permissions: Vec<Permission>,
}

/// One role of a user on one object.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Permission {
    /// E.g. `CUSTOMER.OWNER`, `OFFERING.MANAGER`.
    #[serde(default, deserialize_with = "lenient::text")]
    pub role_name: String,
    /// Kind of object, e.g. `customer`, `offering`.
    #[serde(default, deserialize_with = "lenient::text")]
    pub scope_type: String,
    /// The object.
    #[serde(default, deserialize_with = "lenient::opt_uuid")]
    pub scope_uuid: Option<Uuid>,
    /// Its name.
    #[serde(default, deserialize_with = "lenient::text")]
    pub scope_name: String,
}

impl Client {
    /// Who we are and what roles we have: `GET users/me/`.
    ///
    /// # Errors
    /// [`Class::Credential`](crate::Class::Credential) when the credential is not accepted.
    pub async fn me(&self) -> Result<User> {
        self.get("users/me/", &[]).await
    }
}
