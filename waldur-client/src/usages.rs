//! Usage: amounts per resource, component and month.

use jiff::Timestamp;
use jiff::civil::Date;
use rust_decimal::{Decimal, RoundingStrategy};
use serde::Deserialize;
use serde_json::{Value, json};
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
    #[serde(
        default,
        rename = "resource_uuid",
        deserialize_with = "lenient::opt_uuid"
    )]
    pub resource: Option<Uuid>,
}

const FIELDS: [&str; 6] = [
    "uuid",
    "type",
    "usage",
    "billing_period",
    "date",
    "resource_uuid",
];

/// An amount to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Component type.
    pub kind: String,
    /// Total of the month so far, in the component's unit.
    pub amount: Decimal,
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
    pub async fn usages(
        &self,
        resource: Uuid,
        billing_period: Date,
    ) -> Result<Vec<ComponentUsage>> {
        let mut query = vec![
            ("resource_uuid", resource.simple().to_string()),
            (
                "billing_period",
                billing_period.first_of_month().to_string(),
            ),
        ];
        query.extend(FIELDS.map(|field| ("field", field.to_owned())));
        let mut usages: Vec<ComponentUsage> =
            self.list("marketplace-component-usages/", &query).await?;
        // A server that does not know a filter answers as if it were not there.
        usages.retain(|usage| {
            usage.resource.is_none_or(|of| of == resource)
                && usage
                    .billing_period
                    .is_none_or(|period| period.first_of_month() == billing_period.first_of_month())
        });
        Ok(usages)
    }

    /// Reports totals of a month, half-up to two decimals; each replaces what was there. Send all components of a
    /// resource in one call, once each. `date` names the month on 2026 servers; a 2024 server ignores it and files
    /// under its own month.
    ///
    /// # Errors
    /// [`Class::Refused`](crate::Class::Refused): one bad component, or a resource not in OK, Updating or Terminating,
    /// refuses the whole batch.
    pub async fn set_usage(
        &self,
        resource: Uuid,
        usages: &[Usage],
        date: Option<Timestamp>,
    ) -> Result<()> {
        let usages: Vec<Value> = usages
            .iter()
            .map(|usage| json!({"type": usage.kind, "amount": two_decimals(usage.amount)}))
            .collect();
        let mut body = json!({"resource": resource.simple().to_string(), "usages": usages});
        if let Some(date) = date {
            body["date"] = Value::String(date.to_string());
        }
        self.post("marketplace-component-usages/set_usage/", &body)
            .await
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
            (
                "79228162514264337593543950335",
                "79228162514264337593543950335.00",
            ),
            ("1.0000", "1.00"),
        ];
        for (amount, text) in cases {
            assert_eq!(two_decimals(amount.parse().unwrap()), text, "{amount}");
        }
    }
}
