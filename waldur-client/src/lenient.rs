//! Readers for single JSON fields that take what the different servers send.
//!
//! Every reader looks at the field's own text. That keeps amounts exact (a float is never made) and lets one
//! odd value be read as text where an ordinary parser would refuse the whole document.

use std::collections::BTreeMap;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::Date;
use rust_decimal::Decimal;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use uuid::Uuid;

/// Deepest nesting kept of a free-form value; deeper parts become null.
const MAX_DEPTH: usize = 64;

fn raw<'de, D: Deserializer<'de>>(field: D) -> Result<Box<RawValue>, D::Error> {
    Box::<RawValue>::deserialize(field)
}

/// Any scalar as text; null is empty; a list or object is kept as its JSON text.
pub(crate) fn text<'de, D: Deserializer<'de>>(field: D) -> Result<String, D::Error> {
    Ok(text_of(&raw(field)?))
}

fn text_of(raw: &RawValue) -> String {
    let json = raw.get().trim();
    if json == "null" {
        return String::new();
    }
    if json.starts_with('"') {
        // A text that is no valid Unicode (a lone surrogate) is kept as it was written.
        return serde_json::from_str(json).unwrap_or_else(|_| json.trim_matches('"').to_owned());
    }
    json.to_owned()
}

/// True, 1, and their spellings as text; everything else, null included, is false.
pub(crate) fn flag<'de, D: Deserializer<'de>>(field: D) -> Result<bool, D::Error> {
    let text = text_of(&raw(field)?);
    Ok(matches!(text.as_str(), "true" | "True" | "1"))
}

/// Whether there is anything: null, false, 0 and what is empty are nothing.
pub(crate) fn filled<'de, D: Deserializer<'de>>(field: D) -> Result<bool, D::Error> {
    let value = raw(field)?;
    let text: String = value.get().split_whitespace().collect();
    Ok(!matches!(text.as_str(), "null" | "false" | "0" | "\"\"" | "[]" | "{}"))
}

/// A uuid in either spelling; null and empty are none. Other text is an error: identity is not guessed.
pub(crate) fn opt_uuid<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Uuid>, D::Error> {
    let text = text_of(&raw(field)?);
    if text.is_empty() {
        return Ok(None);
    }
    Uuid::parse_str(&text).map(Some).map_err(|_| D::Error::custom("expected a uuid"))
}

/// A uuid that must be there.
pub(crate) fn uuid<'de, D: Deserializer<'de>>(field: D) -> Result<Uuid, D::Error> {
    opt_uuid(field)?.ok_or_else(|| D::Error::custom("expected a uuid, found nothing"))
}

/// An RFC 3339 time; what is none is left out.
pub(crate) fn opt_time<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Timestamp>, D::Error> {
    Ok(text_of(&raw(field)?).parse().ok())
}

/// A date, or the date a timestamp begins with; what is none is left out.
pub(crate) fn opt_date<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Date>, D::Error> {
    let text = text_of(&raw(field)?);
    Ok(text.get(..10).and_then(|date| date.parse().ok()))
}

/// An exact amount from a number or a text; null and empty are none.
pub(crate) fn opt_decimal<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Decimal>, D::Error> {
    decimal_of(&raw(field)?).map_err(D::Error::custom)
}

/// An exact amount that must be there.
pub(crate) fn decimal<'de, D: Deserializer<'de>>(field: D) -> Result<Decimal, D::Error> {
    opt_decimal(field)?.ok_or_else(|| D::Error::custom("expected an amount, found nothing"))
}

/// Amounts by component type. A null entry is no entry: it says that nothing is set.
pub(crate) fn decimals<'de, D: Deserializer<'de>>(field: D) -> Result<BTreeMap<String, Decimal>, D::Error> {
    let raw = raw(field)?;
    if matches!(raw.get().trim(), "null" | "[]" | "\"\"") {
        return Ok(BTreeMap::new());
    }
    let entries: BTreeMap<String, Box<RawValue>> = serde_json::from_str(raw.get()).map_err(|_| D::Error::custom("expected an object"))?;
    let mut out = BTreeMap::new();
    for (key, value) in entries {
        let amount = decimal_of(&value).map_err(|cause| D::Error::custom(format!("component {key}: {cause}")))?;
        if let Some(amount) = amount {
            out.insert(key, amount);
        }
    }
    Ok(out)
}

fn decimal_of(raw: &RawValue) -> Result<Option<Decimal>, &'static str> {
    let text = text_of(raw);
    match text.trim() {
        "" => Ok(None),
        text => parse_decimal(text).map(Some),
    }
}

/// Reads a decimal number with an optional exponent from its text.
///
/// More than 28 fraction digits are rounded, and what is beyond the largest decimal becomes the largest: such a
/// limit is refused by whoever checks it, while an error here would make the whole list unreadable.
fn parse_decimal(text: &str) -> Result<Decimal, &'static str> {
    const NOT_A_NUMBER: &str = "expected a decimal number";
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => {
            let exponent = i32::from_str(&text[at + 1..]).map_err(|_| NOT_A_NUMBER)?;
            (&text[..at], exponent)
        }
        None => (text, 0),
    };
    let (negative, digits) = match mantissa.as_bytes().first() {
        Some(b'-') => (true, &mantissa[1..]),
        Some(b'+') => (false, &mantissa[1..]),
        _ => (false, mantissa),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) || whole.len() + fraction.len() == 0 {
        return Err(NOT_A_NUMBER);
    }

    let plain = shift_point(whole, fraction, exponent);
    let magnitude = match plain {
        Shifted::Zero => Decimal::ZERO,
        Shifted::TooLarge => Decimal::MAX,
        Shifted::TooSmall => return Err("the number is too small to be held exactly"),
        Shifted::Plain(plain) => match Decimal::from_str(&plain) {
            Ok(value) if value.is_zero() => {
                return Err("the number is too small to be held exactly");
            }
            Ok(value) => value,
            Err(_) => Decimal::MAX,
        },
    };
    Ok(if negative && !magnitude.is_zero() { -magnitude } else { magnitude })
}

enum Shifted {
    Zero,
    TooLarge,
    TooSmall,
    Plain(String),
}

/// `whole.fraction` times ten to the `exponent`, written without one.
fn shift_point(whole: &str, fraction: &str, exponent: i32) -> Shifted {
    let significant = format!("{whole}{fraction}");
    let leading_zeros = significant.len() - significant.trim_start_matches('0').len();
    let significant = significant.trim_start_matches('0');
    if significant.is_empty() {
        return Shifted::Zero;
    }
    // Digits before the point, counted from the first significant one.
    let point = i64::try_from(whole.len()).unwrap_or(i64::MAX) - i64::try_from(leading_zeros).unwrap_or(i64::MAX) + i64::from(exponent);
    // A Decimal holds at most 29 digits before the point and 28 after it.
    if point > 29 {
        return Shifted::TooLarge;
    }
    if point < -28 {
        return Shifted::TooSmall;
    }
    let plain = match usize::try_from(point) {
        Ok(point) if point >= significant.len() => {
            format!("{significant}{}", "0".repeat(point - significant.len()))
        }
        Ok(point) if point > 0 => {
            format!("{}.{}", &significant[..point], &significant[point..])
        }
        _ => {
            let zeros = usize::try_from(-point).unwrap_or(0);
            format!("0.{}{significant}", "0".repeat(zeros))
        }
    };
    Shifted::Plain(plain)
}

/// A free-form object; null and anything else that is no object is empty.
pub(crate) fn map<'de, D: Deserializer<'de>>(field: D) -> Result<Map<String, Value>, D::Error> {
    Ok(match value_of(&raw(field)?, 0) {
        Value::Object(map) => map,
        _ => Map::new(),
    })
}

/// A free-form value.
pub(crate) fn value<'de, D: Deserializer<'de>>(field: D) -> Result<Value, D::Error> {
    Ok(value_of(&raw(field)?, 0))
}

/// Like an ordinary parse, except that a part which cannot be held (an integer of hundreds of digits, a lone
/// surrogate) is kept as its text and nesting that is too deep is cut off: customers write these values.
fn value_of(raw: &RawValue, depth: usize) -> Value {
    let json = raw.get();
    if depth > MAX_DEPTH {
        return Value::Null;
    }
    if let Ok(value) = serde_json::from_str(json) {
        return value;
    }
    match json.trim_start().as_bytes().first() {
        Some(b'{') => serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(json)
            .unwrap_or_default()
            .into_iter()
            .map(|(key, inner)| (key, value_of(&inner, depth + 1)))
            .collect::<Map<_, _>>()
            .into(),
        Some(b'[') => serde_json::from_str::<Vec<Box<RawValue>>>(json)
            .unwrap_or_default()
            .iter()
            .map(|inner| value_of(inner, depth + 1))
            .collect::<Vec<_>>()
            .into(),
        _ => Value::String(text_of(raw)),
    }
}

/// A list whose null is empty. Every entry must be readable.
pub(crate) fn list<'de, D, T>(field: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let raw = raw(field)?;
    if raw.get().trim() == "null" {
        return Ok(Vec::new());
    }
    serde_json::from_str(raw.get()).map_err(|cause| D::Error::custom(plain_cause(&cause)))
}

/// A list for display only: entries that cannot be read, and what is no list, are left out.
pub(crate) fn loose_list<'de, D, T>(field: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let raw = raw(field)?;
    let entries: Vec<Box<RawValue>> = serde_json::from_str(raw.get()).unwrap_or_default();
    Ok(entries.iter().filter_map(|entry| serde_json::from_str(entry.get()).ok()).collect())
}

/// The message of a JSON error without its line and column, which mean little in a body nobody sees.
pub(crate) fn plain_cause(cause: &serde_json::Error) -> String {
    let text = cause.to_string();
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimals_are_read_from_their_text() {
        let cases = [
            ("1e-10", "0.0000000001"),
            ("1E-10", "0.0000000001"),
            ("2.1e-07", "0.00000021"),
            ("0.1", "0.1"),
            ("12.50", "12.50"),
            ("-0.00", "0"),
            ("-3.5", "-3.5"),
            ("5e2", "500"),
            ("1.25e1", "12.5"),
            ("100000000000000000000.01", "100000000000000000000.01"),
            ("0", "0"),
            ("0e999999", "0"),
            ("1e400", "79228162514264337593543950335"),
            ("-1e400", "-79228162514264337593543950335"),
        ];
        for (text, expected) in cases {
            let value = parse_decimal(text).unwrap_or_else(|cause| panic!("{text}: {cause}"));
            assert_eq!(value, Decimal::from_str(expected).unwrap(), "{text}");
        }
        let digits = "9".repeat(400);
        assert_eq!(parse_decimal(&digits).unwrap(), Decimal::MAX);
    }

    #[test]
    fn what_is_no_number_or_would_become_zero_is_refused() {
        for text in ["abc", "", "-", ".", "1,5", "NaN", "inf", "0x1", "1e", "1e1.5", "1 2", "1e-30", "1e-999", "{}"] {
            assert!(parse_decimal(text).is_err(), "{text}");
        }
    }

    fn map_from(json: &str) -> Map<String, Value> {
        let mut de = serde_json::Deserializer::from_str(json);
        map(&mut de).unwrap()
    }

    #[test]
    fn one_odd_value_does_not_spoil_its_neighbours() {
        let huge = "9".repeat(400);
        let json = format!(r#"{{"models":["kestrel-8b"],"note":"\ud800","n":{huge},"deep":{}{}}}"#, "[".repeat(300), "]".repeat(300));
        let map = map_from(&json);
        assert_eq!(map["models"][0], "kestrel-8b");
        assert_eq!(map["n"], Value::String(huge));
        assert_eq!(map["note"], Value::String("\\ud800".into()));
    }

    #[test]
    fn maps_that_are_no_maps_are_empty() {
        for json in ["null", "[]", "3", "\"x\""] {
            assert!(map_from(json).is_empty(), "{json}");
        }
    }

    proptest! {
        #[test]
        fn written_decimals_are_read_back_exactly(mantissa in any::<i64>(), scale in 0u32..=28) {
            let value = Decimal::new(mantissa, scale);
            prop_assert_eq!(parse_decimal(&value.to_string()).unwrap(), value);
            let scientific = format!("{mantissa}e-{scale}");
            prop_assert_eq!(parse_decimal(&scientific).unwrap(), value);
        }

        #[test]
        fn any_text_is_a_number_or_an_error(text in "\\PC{0,40}") {
            let _ = parse_decimal(&text);
        }

        #[test]
        fn anything_numeric_is_a_number_or_an_error(text in "[-+]?[0-9]{0,50}\\.?[0-9]{0,50}([eE][-+]?[0-9]{0,12})?") {
            let _ = parse_decimal(&text);
        }
    }
}
