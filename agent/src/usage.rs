//! The final usage of a resource that ends: read twice, reported, read back. Waldur takes none afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde_json::{Map, Value, json};
use waldur_client::{Order, Resource, Usage};

use crate::agent::{Agent, Failure};
use crate::clock::after;
use crate::config::TokenUnit;
use crate::domain::{BillingMonth, team_id};
use crate::features::Feature;
use crate::gate::Peer;
use crate::plan::{ModelTotals, component_amounts, sum_models};

/// A final usage that Waldur refuses this often is recorded as unbilled, so that the termination goes on.
const REFUSALS: u32 = 3;

impl Agent {
    /// Reports the usage of every month since `since`. `Some(wait)` where a second, equal reading is still due.
    pub(crate) async fn bill(&self, order: &Order, offering: uuid::Uuid, resource: &Resource, since: Timestamp) -> Result<Option<Duration>, Failure> {
        let now = self.clock.now();
        let months = BillingMonth::span(since.min(now), now);
        let mut ledger = BTreeMap::new();
        for month in &months {
            let rows = self.gateway.daily_activity(&[&team_id(resource.uuid)], month.first_day(), month.last_day()).await?;
            ledger.insert(*month, sum_models(&rows));
        }
        if let Some(wait) = self.settled(order.uuid, format!("{ledger:?}"), now) {
            return Ok(Some(wait));
        }
        for (month, totals) in &ledger {
            self.report_month(order, offering, resource, *month, BillingMonth::of(now), totals).await?;
        }
        Ok(None)
    }

    /// Compares a reading with the one before; `Some(wait)` until two that are far enough apart are equal.
    fn settled(&self, order: uuid::Uuid, reading: String, now: Timestamp) -> Option<Duration> {
        let settle = self.config.terminate.settle;
        let mut memory = self.memory();
        match memory.readings.get(&order) {
            Some((at, same)) if *same == reading => {
                let left = now.duration_until(after(*at, settle));
                Duration::try_from(left).ok().filter(|left| !left.is_zero())
            }
            _ => {
                memory.readings.insert(order, (now, reading));
                Some(settle)
            }
        }
    }

    async fn report_month(&self, order: &Order, offering: uuid::Uuid, resource: &Resource, month: BillingMonth, current: BillingMonth, totals: &BTreeMap<String, ModelTotals>) -> Result<(), Failure> {
        let components = self.waldur.offering(offering).await?.components;
        let held = self.held(resource, month).await?;
        let settings = self.offering(offering).ok_or_else(|| Failure::Refused { peer: Peer::Waldur, message: format!("offering {} is not configured", offering.simple()) })?;
        let (mut usages, homeless) = component_amounts(totals, &components, token_unit(settings.token_unit), &held.keys().cloned().collect::<BTreeSet<_>>());
        if !homeless.is_empty() {
            let models = homeless.join(", ");
            self.conditions.raise("usage-without-component", resource.uuid.simple(), format!("{month}: usage of {models} has no component in the offering and cannot be billed"));
            self.note_unbilled(resource, month, &format!("no component for {models}")).await?;
        }
        for usage in &mut usages {
            let before = held.get(&usage.kind).copied().unwrap_or_default();
            if usage.amount < before {
                tracing::warn!(component = usage.kind, %month, "Waldur holds {before}, the gateway's ledger shows {}; the figure in Waldur is not lowered", usage.amount);
                usage.amount = before;
            }
        }
        if usages.iter().all(|usage| held.get(&usage.kind) == Some(&usage.amount)) {
            return Ok(());
        }
        let past = month != current;
        if past && !self.usage_is_dated(resource).await? {
            // This server would file the closed month's figures under the running month.
            return self.note_unbilled(resource, month, "this Waldur takes no usage for a month that has ended").await;
        }
        let date = past.then(|| month.start());
        self.must_lead()?;
        if let Err(error) = self.waldur.set_usage(resource.uuid, &usages, date).await {
            let failure = Failure::from(error);
            if matches!(failure, Failure::Refused { .. }) && self.refused_for_good(order, &failure) {
                return self.note_unbilled(resource, month, &failure.to_string()).await;
            }
            return Err(failure);
        }
        let shown = self.held(resource, month).await?;
        let missing: Vec<&str> = usages.iter().filter(|usage| shown.get(&usage.kind) != Some(&usage.amount)).map(|usage| usage.kind.as_str()).collect();
        if missing.is_empty() {
            tracing::info!(%month, components = usages.len(), "final usage reported and read back: {}", describe(&usages));
            return Ok(());
        }
        let message = format!("usage of {month} was sent but Waldur does not show it for {}", missing.join(", "));
        Err(Failure::Transient { peer: Peer::Waldur, message, retry_after: None, unreachable: false })
    }

    async fn held(&self, resource: &Resource, month: BillingMonth) -> Result<BTreeMap<String, Decimal>, Failure> {
        let rows = self.waldur.usages(resource.uuid, month.first_day()).await?;
        // The filter is the server's; a row of another month would be read as this one's.
        let rows = rows.into_iter().filter(|row| row.billing_period.is_none_or(|period| period == month.first_day()));
        let mut held = BTreeMap::new();
        for row in rows {
            *held.entry(row.kind).or_insert(Decimal::ZERO) += row.usage;
        }
        Ok(held)
    }

    /// Whether this server files usage under the date it is given. The first generation does not, and has no record of
    /// the last look at a resource either.
    async fn usage_is_dated(&self, resource: &Resource) -> Result<bool, Failure> {
        if let Some(known) = self.features.known(Feature::LastSync) {
            return Ok(known);
        }
        match self.waldur.refresh_last_sync(resource.uuid).await {
            Ok(()) => self.features.learn(Feature::LastSync, true),
            Err(error) if error.class() == waldur_client::Class::NoSuchRoute => self.features.learn(Feature::LastSync, false),
            Err(error) => return Err(error.into()),
        };
        Ok(self.features.known(Feature::LastSync) == Some(true))
    }

    fn refused_for_good(&self, order: &Order, failure: &Failure) -> bool {
        let (_, refusals) = self.schedule.back_off(order.uuid, &failure.to_string(), None, true);
        refusals >= REFUSALS
    }

    /// Records usage that cannot be billed where people find it: the log, a metric, a condition and the resource itself.
    async fn note_unbilled(&self, resource: &Resource, month: BillingMonth, why: &str) -> Result<(), Failure> {
        metrics::counter!("llm_access_unbilled_total").increment(1);
        self.conditions.raise("unbilled", format!("{} {month}", resource.uuid.simple()), format!("usage of {month} is not billed: {why}"));
        let mut metadata = resource.backend_metadata.clone();
        let ours = metadata.entry("llm_access").or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(ours) = ours {
            let unbilled = ours.entry("unbilled").or_insert_with(|| json!({}));
            if let Value::Object(months) = unbilled {
                months.insert(month.to_string(), Value::String("usage of this month could not be reported".into()));
            }
        }
        self.waldur.set_backend_metadata(resource.uuid, &metadata).await?;
        Ok(())
    }
}

fn token_unit(unit: TokenUnit) -> Decimal {
    Decimal::from(match unit {
        TokenUnit::One => 1_u32,
        TokenUnit::Thousand => 1_000,
        TokenUnit::Million => 1_000_000,
    })
}

fn describe(usages: &[Usage]) -> String {
    usages.iter().map(|usage| format!("{} {}", usage.kind, usage.amount)).collect::<Vec<_>>().join(", ")
}
