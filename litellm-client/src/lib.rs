#![doc = include_str!("../README.md")]

mod client;
mod decode;
mod error;
mod health;
mod keys;
mod models;
mod number;
mod page;
mod scrub;
mod spend_logs;
mod teams;
mod usage;

pub use client::{BuildError, Client, SecretSource, Settings};
pub use error::{Class, Error, ErrorKind};
pub use health::Readiness;
pub use keys::{GeneratedKey, Key, KeyVerdict, NewKey, OwnBound, OwnKey, key_hash};
pub use models::{DeploymentPatch, ModelInfo, Models, NewDeployment};
pub use spend_logs::{LogFilter, LoggedCall};
pub use teams::{Change, NewTeam, Team, TeamPatch};
pub use usage::{Counts, DayPage, KeyUsage, ModelUsage, TeamUsage};

/// The result of a call to the gateway.
pub type Result<T, E = Error> = std::result::Result<T, E>;
