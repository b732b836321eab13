//! Months as they are billed (UTC, half-open) and amounts as Waldur takes them (two decimals).

use std::fmt;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use rust_decimal::{Decimal, RoundingStrategy};

/// A UTC calendar month: from its first instant up to, but without, the first instant of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BillingMonth {
    first: Date,
}

impl BillingMonth {
    /// The month in which `at` lies.
    #[must_use]
    pub fn of(at: Timestamp) -> Self {
        Self { first: at.to_zoned(TimeZone::UTC).date().first_of_month() }
    }

    /// The month in which `date` lies.
    #[must_use]
    pub fn of_date(date: Date) -> Self {
        Self { first: date.first_of_month() }
    }

    /// Its first day, which is also Waldur's `billing_period`.
    #[must_use]
    pub fn first_day(self) -> Date {
        self.first
    }

    /// Its last day.
    #[must_use]
    pub fn last_day(self) -> Date {
        self.first.last_of_month()
    }

    /// The month after it.
    #[must_use]
    pub fn next(self) -> Self {
        // Years go up to 9999; a clock that far ahead stays where it is.
        Self { first: self.first.checked_add(1.month()).unwrap_or(self.first) }
    }

    /// The month before it.
    #[must_use]
    pub fn previous(self) -> Self {
        Self { first: self.first.checked_sub(1.month()).unwrap_or(self.first) }
    }

    /// Its first instant.
    #[must_use]
    pub fn start(self) -> Timestamp {
        TimeZone::UTC.to_timestamp(self.first.to_datetime(jiff::civil::Time::midnight())).unwrap_or(Timestamp::MIN)
    }

    /// The months from that of `from` to that of `to`, both included, oldest first. Of more than 24 the newest.
    #[must_use]
    pub fn span(from: Timestamp, to: Timestamp) -> Vec<Self> {
        let first = Self::of(from);
        let mut months: Vec<Self> =
            std::iter::successors(Some(Self::of(to)), |month| (*month > first).then(|| month.previous())).take(24).collect();
        months.reverse();
        months
    }
}

impl fmt::Display for BillingMonth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.first.year(), self.first.month())
    }
}

impl std::str::FromStr for BillingMonth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let first = Date::strptime("%Y-%m-%d", format!("{text}-01")).ok().filter(|_| text.len() == 7);
        first.map(Self::of_date).ok_or_else(|| format!("{text:?} is no month; write it as 2026-11"))
    }
}

/// `total ÷ unit`, rounded half-up to the two decimals Waldur takes. Never "-0.00".
#[must_use]
pub fn amount(total: Decimal, unit: Decimal) -> Decimal {
    let exact = total.checked_div(unit).unwrap_or(total);
    let mut rounded = exact.round_dp_with_strategy(2, RoundingStrategy::MidpointAwayFromZero);
    if rounded.is_zero() {
        rounded = Decimal::ZERO;
    }
    rounded.rescale(2);
    rounded
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }
    fn dec(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    #[test]
    fn a_month_is_cut_in_utc_to_the_instant() {
        let november = BillingMonth::of(at("2026-11-30T23:59:59.999Z"));
        assert_eq!(november.to_string(), "2026-11");
        assert_eq!((november.first_day().to_string(), november.last_day().to_string()), ("2026-11-01".into(), "2026-11-30".into()));
        assert_eq!(BillingMonth::of(at("2026-12-01T00:00:00Z")), november.next());
        assert_eq!(november.next().start(), at("2026-12-01T00:00:00Z"));
        assert_eq!(BillingMonth::of(at("2028-02-29T22:00:00Z")).last_day().day(), 29);
        let over_new_year = BillingMonth::span(at("2026-12-31T23:59:00Z"), at("2027-01-01T00:01:00Z"));
        assert_eq!(over_new_year.iter().map(ToString::to_string).collect::<Vec<_>>(), ["2026-12", "2027-01"]);
        assert_eq!(BillingMonth::span(at("2027-01-02T00:00:00Z"), at("2026-12-01T00:00:00Z")).len(), 1);
        let long = BillingMonth::span(at("2020-01-02T00:00:00Z"), at("2026-12-01T00:00:00Z"));
        assert_eq!((long.len(), long[0].to_string(), long[23].to_string()), (24, "2025-01".into(), "2026-12".into()));
    }

    #[test]
    fn a_month_is_read_as_it_is_written() {
        let november = BillingMonth::of(at("2026-11-30T00:00:00Z"));
        assert_eq!("2026-11".parse(), Ok(november));
        assert_eq!(november.previous().next(), november);
        for odd in ["2026-13", "2026-1", "2026", "11-2026", "2026-11-01", ""] {
            assert!(odd.parse::<BillingMonth>().is_err(), "{odd}");
        }
    }

    #[test]
    fn amounts_are_rounded_half_up_and_exact_far_beyond_floats() {
        let thousand = dec("1000");
        for (total, expected) in [
            ("999", "1.00"),
            ("1000", "1.00"),
            ("1500", "1.50"),
            ("123456", "123.46"),
            ("5", "0.01"),
            ("4", "0.00"),
            ("9007199254740993005", "9007199254740993.01"),
        ] {
            assert_eq!(amount(dec(total), thousand).to_string(), expected, "{total}");
        }
        assert_eq!(amount(dec("1.005"), Decimal::ONE).to_string(), "1.01");
        assert_eq!(amount(dec("-0.0000000000000000002"), Decimal::ONE).to_string(), "0.00");
        assert_eq!(amount(dec("0.017707200000000003") * thousand, Decimal::ONE).to_string(), "17.71");
    }
}
