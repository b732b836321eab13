//! Typed client for the part of the Waldur marketplace API that a provider's agent speaks.
//!
//! One [`Client`] per Waldur. It reads orders, resources, offerings, usages and resource API keys,
//! and makes the state changes a provider may make. Three generations of servers are in use (2024,
//! mid-2026, late 2026), so the crate is tolerant in what it reads and exact in what it writes:
//!
//! - unknown states are kept as text, missing and null fields become empty values, numbers may be
//!   strings and the reverse, and every amount is read from its text, never through a float;
//! - a list is the whole list: it is read to the end and counted, or it is an [`ErrorKind::Incomplete`];
//! - success is a status (200, 201, 202, 204), the body of a write is never needed;
//! - redirects are not followed and the credential goes to one host only;
//! - nothing is retried here: [`Error::class`] says what a failure means and
//!   [`Error::may_have_happened`] whether the server may have acted, and the caller decides.
//!
//! Secrets stay in [`secrecy::SecretString`]. Texts that come from the server pass a filter before they
//! become part of an error, so an echoed credential does not reach a log.

mod api_keys;
mod auth;
mod client;
mod error;
mod lenient;
mod models;
mod offerings;
mod orders;
mod page;
mod resources;
mod scrub;
mod usages;
mod users;

pub use api_keys::{ApiKey, ApiKeyFilter, ApiKeyState};
pub use auth::{Auth, SecretSource};
pub use client::{Client, Settings};
pub use error::{BuildError, Class, Error, ErrorKind, Result};
pub use models::{Endpoint, Limits, ReportSection};
pub use offerings::{BillingType, Component, ComponentChange, NewComponent, Offering, Plan};
pub use orders::{Order, OrderKind, OrderState};
pub use resources::{Resource, ResourceState};
pub use usages::{ComponentUsage, DailyUsage, PlanPeriod, PlanUsage, Usage, UsageReport};
pub use users::{Permission, User};
