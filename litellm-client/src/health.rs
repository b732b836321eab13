//! Whether the gateway and its database are there.

use serde::Deserialize;

use crate::Result;
use crate::client::{Auth, Call, Client};

/// The gateway's word on itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    /// Whether it answered 200 and calls itself healthy. With its database down it says `healthy` and answers 503.
    pub healthy: bool,
    /// Whether its database is connected. It stays so while a table lock makes every call hang (measured).
    pub db_connected: bool,
}

#[derive(Deserialize)]
struct Body {
    status: String,
    db: String,
}

impl Client {
    /// Asks `GET /health/readiness`, without a credential. Never `/health`, which calls the models.
    ///
    /// # Errors
    /// When no one answers, or someone else does. A 503 in the gateway's own words is an answer.
    pub async fn readiness(&self) -> Result<Readiness> {
        let call = Call::get("/health/readiness").auth(Auth::Nobody);
        let answer = self.exchange(call).await?;
        if !answer.is_success() && answer.status != 503 {
            return Err(answer.error());
        }
        match answer.decode::<Body>() {
            Ok(body) => Ok(Readiness {
                healthy: answer.is_success() && matches!(body.status.as_str(), "healthy" | "connected"),
                db_connected: body.db == "connected",
            }),
            Err(fault) if answer.is_success() => Err(fault),
            Err(_) => Err(answer.error()),
        }
    }
}
