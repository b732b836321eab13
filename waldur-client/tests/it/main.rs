//! The client against servers on loopback: recorded answers, lists that lie, lost connections, credentials.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod auth;
mod lists;
mod recordings;
mod server;
mod tolerance;
mod transport;
mod writes;
