//! The agent's side of the Kubernetes API: labelled Secrets, written by server-side apply on the version they
//! were read at; events about them; the restart of a Deployment that reads them; and a Lease for the one leader among several replicas.
//!
//! The crate sits on `kube`'s client without its retries: each call is one request under one time-out, and what
//! to do after a failure is the caller's decision. Bodies are decoded here, because `kube` logs a body which it
//! cannot decode, and these bodies hold keys.

mod client;
mod deployments;
mod error;
mod events;
mod lease;
mod object;
mod secrets;

pub use client::Settings;
pub use deployments::{Deployments, Rollout};
pub use error::{Class, Error};
pub use events::{Event, Events, Subject};
pub use lease::{Lease, LeaseSettings};
pub use object::{Draft, Stored};
pub use secrets::{Created, Secrets};

/// The outcome of a call to the Kubernetes API.
pub type Result<T, E = Error> = std::result::Result<T, E>;
