//! Numbers and dates as the gateway writes them, read from their text.
//!
//! The gateway is Python: money comes as `50.0`, `1.35e-05`, `0.017707200000000003` or `-2e-19`, sometimes as an integer
//! or a string. A binary float never takes part: the digits of the JSON text are read as they stand.

use jiff::Timestamp;
use jiff::civil;
use jiff::tz::TimeZone;
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;

/// The decimal places a [`Decimal`] can hold; digits beyond are rounded half up, so what is below 1e-28 becomes 0.
const MAX_SCALE: i64 = 28;
const MAX_MANTISSA: u128 = (1 << 96) - 1;
/// More significant digits than a `Decimal` keeps, and few enough for a `u128` to take another one.
const MANTISSA_CAP: u128 = 10_u128.pow(36);

/// Why a text is no number we can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// Not written like a number.
    Syntax,
    /// A number too large for a [`Decimal`].
    Range {
        /// Whether it is below zero.
        negative: bool,
    },
}

/// Reads a JSON number, or the same digits inside a string, exactly.
pub(crate) fn parse_decimal(text: &str) -> Result<Decimal, Unreadable> {
    let text = text.trim();
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (digits, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, parse_exponent(exponent)?),
        None => (unsigned, 0),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return Err(Unreadable::Syntax);
    }
    let mut mantissa: u128 = 0;
    let mut scale: i64 = exponent.saturating_neg();
    for (part, is_fraction) in [(whole, false), (fraction, true)] {
        for byte in part.bytes() {
            if !byte.is_ascii_digit() {
                return Err(Unreadable::Syntax);
            }
            if mantissa < MANTISSA_CAP {
                mantissa = mantissa * 10 + u128::from(byte - b'0');
                scale = scale.saturating_add(i64::from(is_fraction));
            } else if !is_fraction {
                scale = scale.saturating_sub(1);
            }
        }
    }
    if mantissa == 0 {
        return Ok(Decimal::ZERO);
    }
    let range = Unreadable::Range { negative };
    if scale < 0 {
        mantissa = power_of_ten(scale.saturating_neg()).and_then(|power| mantissa.checked_mul(power)).ok_or(range)?;
        scale = 0;
    }
    if scale > MAX_SCALE {
        mantissa = match power_of_ten(scale - MAX_SCALE) {
            Some(power) => (mantissa / power) + u128::from(mantissa % power >= power / 2),
            None => 0,
        };
        scale = MAX_SCALE;
    }
    while mantissa > MAX_MANTISSA {
        if scale == 0 {
            return Err(range);
        }
        mantissa = mantissa / 10 + u128::from(mantissa % 10 >= 5);
        scale -= 1;
    }
    let signed = i128::try_from(mantissa).map_err(|_| range)?;
    let scale = u32::try_from(scale).map_err(|_| range)?;
    Decimal::try_from_i128_with_scale(if negative { -signed } else { signed }, scale)
        .map(|value| if value.is_zero() { Decimal::ZERO } else { value.normalize() })
        .map_err(|_| range)
}

fn parse_exponent(text: &str) -> Result<i64, Unreadable> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(Unreadable::Syntax);
    }
    // An exponent beyond any i64 is as good as the largest one: zero below, out of range above.
    Ok(text.parse().unwrap_or(if text.starts_with('-') { -i64::from(i32::MAX) } else { i64::from(i32::MAX) }))
}

fn power_of_ten(exponent: i64) -> Option<u128> {
    u32::try_from(exponent).ok().and_then(|e| 10_u128.checked_pow(e))
}

/// The JSON number text for a decimal: plain digits, no exponent, no trailing zeros.
pub(crate) fn json_number(value: Decimal) -> Result<Box<RawValue>, serde_json::Error> {
    let text = if value.is_zero() { "0".to_owned() } else { value.normalize().to_string() };
    RawValue::from_string(text)
}

/// `None` for null, otherwise the text of the number with the quotes of a string taken off.
fn number_text(raw: &RawValue) -> Option<&str> {
    let text = raw.get();
    if text == "null" {
        return None;
    }
    Some(text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(text))
}

fn not_a_number<E: de::Error>(what: &str) -> E {
    E::custom(format_args!("expected {what}"))
}

/// A sum of money or a counter kept as a decimal; null and absent are refused.
pub(crate) fn decimal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Decimal, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    number_text(raw).and_then(|text| parse_decimal(text).ok()).ok_or_else(|| not_a_number("a number"))
}

/// A sum of money where null means nothing was counted yet.
pub(crate) fn decimal_or_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Decimal, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    match number_text(raw) {
        None => Ok(Decimal::ZERO),
        Some(text) => parse_decimal(text).map_err(|_| not_a_number("a number or null")),
    }
}

/// A price: a number or null.
pub(crate) fn optional_decimal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Decimal>, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    number_text(raw).map(|text| parse_decimal(text).map_err(|_| not_a_number("a number or null"))).transpose()
}

/// A budget: a number or null. One too large to hold is the largest we can hold, so that a stranger's `1e300` does not
/// make every team unreadable.
pub(crate) fn optional_budget<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Decimal>, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    number_text(raw)
        .map(|text| match parse_decimal(text) {
            Ok(value) => Ok(value),
            Err(Unreadable::Range { negative: false }) => Ok(Decimal::MAX),
            Err(Unreadable::Range { negative: true }) => Ok(Decimal::MIN),
            Err(Unreadable::Syntax) => Err(not_a_number("a number or null")),
        })
        .transpose()
}

/// A rate limit: a whole number or null. One below zero lets as little through as zero does and is read as zero.
pub(crate) fn optional_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    number_text(raw)
        .map(|text| match parse_decimal(text) {
            Ok(value) if value.is_sign_negative() => Ok(0),
            Ok(value) if value.is_integer() => Ok(value.to_u64().unwrap_or(u64::MAX)),
            Err(Unreadable::Range { negative }) => Ok(if negative { 0 } else { u64::MAX }),
            Ok(_) | Err(Unreadable::Syntax) => Err(not_a_number("a whole number or null")),
        })
        .transpose()
}

/// A counter: a whole number that is not below zero; null is refused.
pub(crate) fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let raw = <&'de RawValue>::deserialize(deserializer)?;
    let text = number_text(raw).ok_or_else(|| not_a_number("a counter"))?;
    if let Ok(value) = text.parse() {
        return Ok(value);
    }
    parse_decimal(text)
        .ok()
        .filter(Decimal::is_integer)
        .and_then(|value| value.to_u64())
        .ok_or_else(|| not_a_number("a whole number that is not below zero"))
}

/// A point in time or null. A time without an offset is UTC: the gateway runs its clocks in UTC.
pub(crate) fn optional_timestamp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    parse_timestamp(&text).map(Some).ok_or_else(|| de::Error::custom("expected a date and time"))
}

fn parse_timestamp(text: &str) -> Option<Timestamp> {
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Some(timestamp);
    }
    let local: civil::DateTime = text.parse().ok()?;
    local.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> String {
        parse_decimal(text).unwrap().to_string()
    }

    #[test]
    fn digits_stay_as_they_are_written() {
        assert_eq!(read("0.017707200000000003"), "0.017707200000000003");
        assert_eq!(read("0.00014000000000000286"), "0.00014000000000000286");
        assert_eq!(read("1.35e-05"), "0.0000135");
        assert_eq!(read("-2e-19"), "-0.0000000000000000002");
        assert_eq!(read("50.0"), "50");
        assert_eq!(read("50"), "50");
        assert_eq!(read("1e15"), "1000000000000000");
        assert_eq!(read("1E+2"), "100");
        assert_eq!(read("79228162514264337593543950335"), "79228162514264337593543950335");
    }

    #[test]
    fn what_is_too_small_rounds_and_zero_has_no_sign() {
        assert_eq!(read("4e-29"), "0");
        assert_eq!(read("5e-29"), "0.0000000000000000000000000001");
        assert_eq!(read("1e-300"), "0");
        assert_eq!(read("-1e-300"), "0");
        assert_eq!(read("-0.0"), "0");
        assert_eq!(read("0e99999999999999999999"), "0");
        assert_eq!(read("1e-99999999999999999999"), "0");
        // 1/3 with more digits than fit.
        assert_eq!(read("0.333333333333333333333333333333333333333333"), "0.3333333333333333333333333333");
    }

    #[test]
    fn no_number_and_out_of_range_are_told_apart() {
        for text in ["", "-", ".", "e5", "1e", "1e+", "abc", "1_000", "0x1", "NaN", "Infinity", "1.2.3", "1,5"] {
            assert_eq!(parse_decimal(text), Err(Unreadable::Syntax), "{text:?}");
        }
        assert_eq!(parse_decimal("1e300"), Err(Unreadable::Range { negative: false }));
        assert_eq!(parse_decimal("-1e300"), Err(Unreadable::Range { negative: true }));
        assert_eq!(parse_decimal("79228162514264337593543950336"), Err(Unreadable::Range { negative: false }));
    }

    #[derive(Deserialize)]
    struct Row {
        #[serde(default, deserialize_with = "optional_budget")]
        budget: Option<Decimal>,
        #[serde(default, deserialize_with = "optional_limit")]
        limit: Option<u64>,
        #[serde(default, deserialize_with = "decimal_or_zero")]
        spend: Decimal,
        #[serde(default, deserialize_with = "optional_decimal")]
        price: Option<Decimal>,
        #[serde(default, deserialize_with = "optional_timestamp")]
        at: Option<Timestamp>,
    }

    fn row(text: &str) -> Row {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn fields_come_as_numbers_strings_or_null() {
        let r = row(r#"{"budget": "12.50", "limit": 1000.0, "spend": null, "at": null}"#);
        assert_eq!((r.budget, r.limit), (Some(Decimal::new(125, 1)), Some(1000)));
        assert_eq!((r.spend, r.at), (Decimal::ZERO, None));
        let r = row(r#"{"budget": null, "limit": null}"#);
        assert_eq!((r.budget, r.limit), (None, None));
        let r = row(r#"{"budget": 1e300, "limit": -1, "spend": -2e-19}"#);
        assert_eq!((r.budget, r.limit), (Some(Decimal::MAX), Some(0)));
        assert_eq!(r.spend, Decimal::new(-2, 19));
        for bad in [r#"{"budget": "x"}"#, r#"{"limit": 1.5}"#, r#"{"spend": []}"#, r#"{"at": "soon"}"#] {
            assert!(serde_json::from_str::<Row>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn prices_are_read_to_the_last_digit() {
        for price in ["0.0000002100000000000001", "2.100000000000001e-7", "9007199254740993", "0.1"] {
            assert_eq!(row(&format!(r#"{{"price": {price}}}"#)).price, Some(parse_decimal(price).unwrap()), "{price}");
        }
        assert_eq!(row(r#"{"price": 9007199254740993}"#).price.unwrap().to_string(), "9007199254740993");
        assert_eq!(row(r#"{"price": null}"#).price, None);
    }

    #[test]
    fn times_with_and_without_offset_are_utc() {
        let expected: Timestamp = "2026-12-01T00:00:00Z".parse().unwrap();
        for text in ["2026-12-01T00:00:00Z", "2026-12-01T00:00:00+00:00", "2026-12-01T00:00:00", "2026-12-01 00:00:00"] {
            assert_eq!(row(&format!(r#"{{"at": "{text}"}}"#)).at, Some(expected), "{text}");
        }
    }

    #[test]
    fn written_numbers_have_no_exponent() {
        for (value, text) in [("12.50", "12.5"), ("50", "50"), ("1e15", "1000000000000000"), ("1e-9", "0.000000001"), ("0.00", "0")] {
            assert_eq!(json_number(parse_decimal(value).unwrap()).unwrap().get(), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "[-+0-9.eE]{0,60}") {
            let _ = parse_decimal(&text);
        }

        #[test]
        fn what_is_written_is_read_back(mantissa in any::<i64>(), scale in 0_u32..=28) {
            let value = Decimal::from_i128_with_scale(i128::from(mantissa), scale);
            prop_assert_eq!(parse_decimal(json_number(value).unwrap().get()).unwrap(), value);
        }
    }
}
