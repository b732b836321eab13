//! The field's nouns as the agent uses them. No input or output here.

mod component_key;
mod identity;
mod limits;
mod mark;
mod models;
mod month;

pub use component_key::{Direction, component_key, usage_component};
pub use identity::{KeyAlias, reference, team_alias, team_id};
pub use limits::{LimitProblem, TeamLimits, effective_limits};
pub use mark::{MANAGED_BY, Mark};
pub use models::{ModelProblem, ModelRequest, resolve_models};
pub use month::{BillingMonth, amount};
