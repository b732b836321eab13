//! Numbers and durations, read from their text and never through a float.

use std::time::Duration;

use rust_decimal::Decimal;

/// Reads a decimal number exactly: `20`, `12.5`, `2.1e-07`. Zero has no sign.
///
/// # Errors
/// A text that says what is wrong, without the value.
pub(crate) fn decimal(text: &str) -> Result<Decimal, &'static str> {
    const NOT: &str = "is not a decimal number";
    if text.contains(',') {
        return Err("is not a decimal number: write a point, not a comma");
    }
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let (mantissa, exponent) = match rest.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => {
            let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
            if digits.is_empty() || digits.len() > 4 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(NOT);
            }
            (mantissa, exponent.parse::<i64>().map_err(|_| NOT)?)
        }
        None => (rest, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if (whole.is_empty() && fraction.is_empty()) || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return Err(NOT);
    }
    if whole.len() > 1 && whole.starts_with('0') {
        return Err("has a leading zero, which some readers take for octal; write it without");
    }
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Ok(Decimal::ZERO);
    }
    let count = |text: &str| i64::try_from(text.len()).map_err(|_| NOT);
    let mut scale = count(fraction)? - exponent - (count(digits)? - count(significant)?);
    let mut value = significant.to_owned();
    while scale < 0 && value.len() <= 29 {
        value.push('0');
        scale += 1;
    }
    const INEXACT: &str = "has more digits than can be kept exactly (28)";
    if !(0..=28).contains(&scale) || value.len() > 28 {
        return Err(INEXACT);
    }
    let unscaled: i128 = value.parse().map_err(|_| INEXACT)?;
    let scale = u32::try_from(scale).map_err(|_| INEXACT)?;
    Decimal::try_from_i128_with_scale(if negative { -unscaled } else { unscaled }, scale).map_err(|_| INEXACT)
}

/// Reads a whole number of plain digits.
///
/// # Errors
/// A text that says what is wrong, without the value.
pub(crate) fn whole(text: &str) -> Result<u32, &'static str> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("is not a whole number");
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err("has a leading zero, which some readers take for octal; write it without");
    }
    text.parse().map_err(|_| "is larger than 4294967295")
}

/// Reads a duration: a whole number and a unit, `500ms`, `15s`, `10m`, `1h` or `2d`; at most 31 days.
///
/// # Errors
/// A text that says what is wrong, without the value.
pub(crate) fn duration(text: &str) -> Result<Duration, &'static str> {
    const NOT: &str = "is not a duration; write a whole number and a unit: 500ms, 15s, 10m, 1h or 2d";
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(NOT);
    }
    let millis = match unit {
        "ms" => 1_u64,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "" => return Err("is a duration without a unit; write 500ms, 15s, 10m, 1h or 2d"),
        _ => return Err(NOT),
    };
    let number: u64 = number.parse().map_err(|_| "is longer than 31 days")?;
    match number.checked_mul(millis) {
        Some(total) if total <= 31 * 86_400_000 => Ok(Duration::from_millis(total)),
        _ => Err("is longer than 31 days"),
    }
}

/// A duration as it is written in the configuration.
pub(crate) fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    for (unit, size) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if millis > 0 && millis.is_multiple_of(size) {
            return format!("{}{unit}", millis / size);
        }
    }
    format!("{millis}ms")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn decimals_are_exact() {
        for (text, shown) in [
            ("20", "20"),
            ("12.5", "12.5"),
            ("12.50", "12.5"),
            ("1.10", "1.1"),
            ("2.1e-07", "0.00000021"),
            ("8.5E-7", "0.00000085"),
            ("5e-7", "0.0000005"),
            ("0.000000150000000000000001", "0.000000150000000000000001"),
            ("1e15", "1000000000000000"),
            ("1e-28", "0.0000000000000000000000000001"),
            ("+3", "3"),
            ("-3", "-3"),
            ("0", "0"),
            ("-0", "0"),
            ("0.0", "0"),
            ("0e0", "0"),
            (".5", "0.5"),
            ("1000", "1000"),
        ] {
            assert_eq!(decimal(text).unwrap().to_string(), shown, "{text}");
        }
        for text in [
            "",
            "-",
            ".",
            "e3",
            "1e",
            "1e-",
            "0,5",
            "1_000",
            "0x10",
            ".nan",
            ".inf",
            "inf",
            "1e-30",
            "1e40",
            "010",
            " 1",
            "1 ",
            "--1",
            "1.2.3",
            "99999999999999999999999999999",
        ] {
            assert!(decimal(text).is_err(), "{text}");
        }
    }

    #[test]
    fn whole_numbers_are_plain_digits() {
        assert_eq!(whole("0"), Ok(0));
        assert_eq!(whole("16"), Ok(16));
        assert_eq!(whole("4294967295"), Ok(u32::MAX));
        for text in ["", "010", "-1", "+1", "1.0", "1e3", "0x1", " 1", "4294967296"] {
            assert!(whole(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_have_a_unit() {
        for (text, millis) in [("500ms", 500), ("15s", 15_000), ("10m", 600_000), ("1h", 3_600_000), ("31d", 2_678_400_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
            assert_eq!(show_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        for text in ["", "s", "15", "1.5h", "1h30m", "10 m", "-1s", "32d", "99999999999999999999s", "10min"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
