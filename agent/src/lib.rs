//! The agent that sells shared LLM access through a Waldur marketplace offering.
//!
//! Reading, deciding and writing stay apart: [`observe`] asks the peers, [`plan`] decides without any I/O, [`apply`] carries
//! out one action at a time, and [`orders`] and [`resources`] drive the two loops. Nothing is kept between passes that the
//! peers do not hold themselves.

pub mod agent;
pub mod apply;
pub mod catalogue;
pub mod cli;
pub mod clock;
pub mod conditions;
pub mod config;
pub mod domain;
pub mod events;
pub mod features;
pub mod gate;
pub mod http;
pub mod lease;
pub mod observe;
pub mod offering;
pub mod orders;
pub mod page;
pub mod plan;
pub mod registration;
pub mod resources;
pub mod restart;
pub mod rights;
pub mod rotation;
pub mod schedule;
pub mod secret_file;
pub mod secrets;
pub mod telemetry;
pub mod tls;
#[cfg(feature = "otel")]
pub mod traces;
pub mod usage;
pub mod visible;
