//! Usage: amounts per resource, component and month.

use jiff::Timestamp;
use jiff::civil::Date;
use rust_decimal::{Decimal, RoundingStrategy};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::client::Client;
use crate::error::Result;
use crate::lenient;
use crate::page::Row;

/// What the server holds for one component of a resource in one month.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct ComponentUsage {
    /// Its uuid.
    #[serde(default, deserialize_with = "lenient::opt_uuid")]
    pub uuid: Option<Uuid>,
    /// Component type.
    #[serde(default, rename = "type", deserialize_with = "lenient::text")]
    pub kind: String,
    /// Amount of the month so far, in the component's unit.
    #[serde(deserialize_with = "lenient::decimal")]
    pub usage: Decimal,
    /// First day of the month it counts for.
    #[serde(default, deserialize_with = "lenient::opt_date")]
    pub billing_period: Option<Date>,
    /// When it was last reported.
    #[serde(default, deserialize_with = "lenient::opt_time")]
    pub date: Option<Timestamp>,
    /// The resource.
    #[serde(default, rename = "resource_uuid", deserialize_with = "lenient::opt_uuid")]
    pub resource: Option<Uuid>,
    /// The note it was last reported with.
    #[serde(default, deserialize_with = "lenient::text")]
    pub description: String,
}

/// The server's names of what [`ComponentUsage`] reads; the last two are for people.
const FIELDS: [&str; 7] = ["uuid", "type", "usage", "billing_period", "resource_uuid", "date", "description"];

/// An amount to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Component type.
    pub kind: String,
    /// Total of the month so far, in the component's unit.
    pub amount: Decimal,
}

/// The part of a month's amount that belongs to one day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DailyUsage {
    /// Component type.
    pub kind: String,
    /// The day.
    pub date: Date,
    /// Its part; those of a month add up to the month's total.
    pub amount: Decimal,
}

/// A report of one resource and month.
#[derive(Debug, Clone, Copy, Default)]
pub struct UsageReport<'a> {
    /// All components of the resource, once each.
    pub usages: &'a [Usage],
    /// The part of each day, which late-2026 servers keep for components with a spending limit per day or week.
    pub daily: &'a [DailyUsage],
    /// A moment of the month, for servers that date usage; a 2024 server ignores it and files under its own month.
    pub date: Option<Timestamp>,
    /// A note for each of the figures, in their order, that the server keeps and shows to people; or none at all.
    pub descriptions: &'a [String],
}

/// A time in which a resource had one plan. Servers of 2024 keep usage apart for each.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct PlanPeriod {
    /// Since when.
    #[serde(default, deserialize_with = "lenient::opt_time")]
    pub start: Option<Timestamp>,
    /// Until when; `None` for the one that goes on.
    #[serde(default, deserialize_with = "lenient::opt_time")]
    pub end: Option<Timestamp>,
    /// What was reported in it for the running month.
    #[serde(default, deserialize_with = "lenient::list")]
    pub components: Vec<PlanUsage>,
}

/// A figure of the running month within a [`PlanPeriod`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PlanUsage {
    /// Component type.
    #[serde(default, rename = "type", deserialize_with = "lenient::text")]
    pub kind: String,
    /// Amount of the month so far, in the component's unit.
    #[serde(deserialize_with = "lenient::decimal")]
    pub usage: Decimal,
}

impl Row for ComponentUsage {
    fn id(&self) -> Option<Uuid> {
        self.uuid
    }
}

impl Client {
    /// What the server holds for a resource in the month that begins on `billing_period`.
    ///
    /// # Errors
    /// Any; the list is whole or an error.
    pub async fn usages(&self, resource: Uuid, billing_period: Date) -> Result<Vec<ComponentUsage>> {
        // A server that does not know a filter answers as if it were not there.
        let of_it = |row: ComponentUsage| row.resource.is_none_or(|of| of == resource).then_some(row);
        self.usage_rows(("resource_uuid", resource.simple().to_string()), billing_period, &FIELDS, of_it).await
    }

    /// What the server holds for all resources of an offering in the month that begins on `billing_period`. Where the
    /// server does not know the filter, rows of other offerings are among them; each row names its resource.
    ///
    /// # Errors
    /// Any; the list is whole or an error.
    pub async fn usages_of_offering(&self, offering: Uuid, billing_period: Date) -> Result<Vec<ComponentUsage>> {
        self.usage_rows(("offering_uuid", offering.simple().to_string()), billing_period, &FIELDS, Some).await
    }

    /// Like [`Client::usages_of_offering`] without what is for people, the date and the description, and keeping of each row
    /// only what `keep` makes of it: there may be a hundred thousand of them.
    ///
    /// # Errors
    /// As [`Client::usages_of_offering`].
    pub async fn usages_of_offering_as<U>(
        &self,
        offering: Uuid,
        billing_period: Date,
        keep: impl Fn(ComponentUsage) -> Option<U>,
    ) -> Result<Vec<U>> {
        self.usage_rows(("offering_uuid", offering.simple().to_string()), billing_period, &FIELDS[..5], keep).await
    }

    async fn usage_rows<U>(
        &self,
        of: (&'static str, String),
        billing_period: Date,
        fields: &[&str],
        keep: impl Fn(ComponentUsage) -> Option<U>,
    ) -> Result<Vec<U>> {
        let month = billing_period.first_of_month();
        let mut query = vec![of, ("billing_period", month.to_string())];
        query.extend(fields.iter().map(|field| ("field", (*field).to_owned())));
        let of_month = |row: &ComponentUsage| row.billing_period.is_none_or(|period| period.first_of_month() == month);
        let keep = |row: ComponentUsage| if of_month(&row) { keep(row) } else { None };
        Ok(self.list_as("marketplace-component-usages/", &query, keep).await?.into_iter().flatten().collect())
    }

    /// Reports totals of a month, half-up to two decimals; each replaces what was there.
    ///
    /// # Errors
    /// [`Class::Refused`](crate::Class::Refused): one bad component, or a resource not in OK, Updating or Terminating,
    /// refuses the whole batch.
    pub async fn report_usage(&self, resource: Uuid, report: &UsageReport<'_>) -> Result<()> {
        let mut body = report_body(report);
        body.insert("resource".into(), resource.simple().to_string().into());
        if let Some(date) = report.date {
            body.insert("date".into(), Value::String(date.to_string()));
        }
        self.post("marketplace-component-usages/set_usage/", &body).await
    }

    /// [`Client::report_usage`] without anything but the figures and a date.
    ///
    /// # Errors
    /// As [`Client::report_usage`].
    pub async fn set_usage(&self, resource: Uuid, usages: &[Usage], date: Option<Timestamp>) -> Result<()> {
        self.report_usage(resource, &UsageReport { usages, date, ..UsageReport::default() }).await
    }

    /// The times in which a resource had one plan each, with what was reported in them for the running month.
    ///
    /// # Errors
    /// Any.
    pub async fn plan_periods(&self, resource: Uuid) -> Result<Vec<PlanPeriod>> {
        self.get(&format!("marketplace-provider-resources/{}/plan_periods/", resource.simple()), &[]).await
    }

    /// Reports what one API key used in a month (late 2026). Each amount replaces what was there.
    ///
    /// # Errors
    /// [`Class::Conflict`](crate::Class::Conflict) for a month that is over for this key, and
    /// [`Class::NoSuchRoute`](crate::Class::NoSuchRoute) on servers without it.
    pub async fn report_key_usage(&self, key: Uuid, usages: &[Usage], billing_period: Date) -> Result<()> {
        let mut body = report_body(&UsageReport { usages, ..UsageReport::default() });
        let month = billing_period.first_of_month().to_string();
        body.insert("billing_period".into(), month.into());
        let path = format!("marketplace-resource-api-keys/{}/report_usage/", key.simple());
        self.post(&path, &body).await
    }
}

fn report_body(report: &UsageReport<'_>) -> Map<String, Value> {
    let mut body = Map::new();
    let total = |(at, usage): (usize, &Usage)| {
        let mut total = json!({"type": usage.kind, "amount": two_decimals(usage.amount)});
        if let Some(description) = report.descriptions.get(at) {
            total["description"] = description.as_str().into();
        }
        total
    };
    body.insert("usages".into(), report.usages.iter().enumerate().map(total).collect());
    if !report.daily.is_empty() {
        let part = |day: &DailyUsage| json!({"type": day.kind, "date": day.date.to_string(), "amount": two_decimals(day.amount)});
        body.insert("daily_usages".into(), report.daily.iter().map(part).collect());
    }
    body
}

impl crate::Error {
    /// The component types that a refusal of usage names as invalid; one of them refuses the whole batch. Empty where the
    /// answer names none.
    #[must_use]
    pub fn invalid_components(&self) -> Vec<String> {
        const BEFORE: &str = "These components are invalid: ";
        let crate::ErrorKind::Status { fields, .. } = &self.kind else {
            return Vec::new();
        };
        let texts = fields.values().flatten();
        let lists = texts.filter_map(|text| text.strip_prefix(BEFORE));
        let names = lists.flat_map(|list| list.trim_end_matches('.').split(", "));
        names.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    }

    /// The places in a refused batch of usages that the answer points at: `usages[2].amount` is 2.
    #[must_use]
    pub fn refused_usages(&self) -> Vec<usize> {
        let crate::ErrorKind::Status { fields, .. } = &self.kind else {
            return Vec::new();
        };
        let places = fields.keys().filter_map(|at| at.strip_prefix("usages["));
        places.filter_map(|rest| rest.split(']').next()?.parse().ok()).collect()
    }

    /// Whether the answer points at the days of a refused report.
    #[must_use]
    pub fn refuses_days(&self) -> bool {
        matches!(&self.kind, crate::ErrorKind::Status { fields, .. } if fields.keys().any(|at| at.starts_with("daily_usages")))
    }

    /// Whether an answer of status 400 is about this field.
    #[must_use]
    pub fn is_about(&self, field: &str) -> bool {
        matches!(&self.kind, crate::ErrorKind::Status { fields, .. } if fields.contains_key(field))
    }
}

/// The amount with exactly two decimals; a rounded zero has no sign.
fn two_decimals(amount: Decimal) -> String {
    let mut amount = amount.round_dp_with_strategy(2, RoundingStrategy::MidpointAwayFromZero);
    if amount.is_zero() {
        amount = Decimal::ZERO;
    }
    format!("{amount:.2}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn amounts_have_two_decimals_and_zero_has_no_sign() {
        let cases = [
            ("0", "0.00"),
            ("-0.00", "0.00"),
            ("-0.004", "0.00"),
            ("12.5", "12.50"),
            ("0.005", "0.01"),
            ("123.456", "123.46"),
            ("-1.005", "-1.01"),
            ("79228162514264337593543950335", "79228162514264337593543950335.00"),
            ("1.0000", "1.00"),
        ];
        for (amount, text) in cases {
            assert_eq!(two_decimals(amount.parse().unwrap()), text, "{amount}");
        }
    }
}
