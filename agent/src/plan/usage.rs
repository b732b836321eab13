//! From the gateway's daily rows to what Waldur is told: what the ledger says and whether it adds up, the amounts that
//! follow, when and under which month they can be filed, and what of it has to be sent.

mod amounts;
mod calls;
mod filing;
mod ledger;
mod upstreams;

#[cfg(test)]
mod tests;

pub use amounts::{Amounts, Decision, Lower, component_amounts, daily_amounts, decide, usable_components};
pub use calls::{Log, LoggedDay};
pub use filing::{Filing, filing, is_over};
pub use ledger::{Ledger, ModelTotals, Proven, TeamTotals, TeamUse, Totals, Withheld};
pub use upstreams::Upstreams;
