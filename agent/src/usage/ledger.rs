//! Reads the gateway's ledger, and what it takes to believe it.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use litellm_client::LogFilter;

use crate::agent::{Agent, Failure};
use crate::config::FailedCalls;
use crate::plan::{Ledger, Proven, Totals};

impl Agent {
    /// The rows of the days `from` to `to` (UTC, both included) of these teams, or of all where none is named, and what of
    /// them adds up. Totals of today are read before and after the rows, those of other days after them.
    pub(crate) async fn read_ledger(&self, teams: &[&str], from: Date, to: Date) -> Result<Proven, Failure> {
        let today = self.clock.now().to_zoned(TimeZone::UTC).date();
        let to = to.min(today);
        let before = if to == today { self.gateway.daily_totals(teams, today, today).await? } else { None };
        let mut ledger = Ledger::default();
        self.gateway.daily_activity_each(teams, from, to, |day| ledger.take(day)).await?;
        let after = match self.gateway.daily_totals(teams, from, to).await? {
            Some(days) => Totals::of(&days),
            // A release without totals: a second reading in their place.
            None => {
                let mut again = Totals::default();
                self.gateway.daily_activity_each(teams, from, to, |day| again.take(&day)).await?;
                again
            }
        };
        let mut proven = ledger.prove(before.as_deref().map(Totals::of).as_ref(), Some(&after), today);
        if self.config.usage.failed_calls == FailedCalls::Exclude && proven.rows > 0 {
            let mut failed = Vec::new();
            let filter = LogFilter { team_id: if let [team] = teams { Some(*team) } else { None }, model_group: None, failed: true };
            self.gateway.spend_logs(filter, from, to, |call| failed.push(call)).await?;
            proven.without_failed(&failed);
        }
        Ok(proven)
    }
}
