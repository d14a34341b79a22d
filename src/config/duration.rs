//! Go's notation of durations, as in every Kubernetes configuration: `500ms`, `1m30s`, `1.5h`.
//!
//! [`parse`] accepts what Go's `time.ParseDuration` accepts, except negative durations; [`format()`] prints what Go's
//! `Duration.String` prints. Printed durations parse to the same value, to the nanosecond.

use std::time::Duration;

use thiserror::Error;

/// Go keeps nanoseconds in an `int64`: about 292 years.
const MAX_NANOS: u128 = i64::MAX as u128;

const MICROSECOND: u128 = 1_000;
const MILLISECOND: u128 = 1_000_000;
const SECOND: u128 = 1_000_000_000;
const MINUTE: u128 = 60 * SECOND;
const HOUR: u128 = 60 * MINUTE;

const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", MICROSECOND),
    // The micro sign, and the Greek letter.
    ("\u{b5}s", MICROSECOND),
    ("\u{3bc}s", MICROSECOND),
    ("ms", MILLISECOND),
    ("s", SECOND),
    ("m", MINUTE),
    ("h", HOUR),
];

/// Digits after the point that can matter: an hour has fewer nanoseconds.
const FRACTION_DIGITS: usize = 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DurationError {
    /// Empty, or only a sign.
    #[error("it is empty")]
    Empty,
    /// A minus sign; there is no use for one here.
    #[error("it is negative")]
    Negative,
    /// A place where a number has to be.
    #[error("a number is missing")]
    NoNumber,
    /// A number without a unit.
    #[error("a unit is missing: ns, us, ms, s, m or h")]
    NoUnit,
    /// A unit that Go does not know, such as `d`.
    #[error("it has an unknown unit: ns, us, ms, s, m or h")]
    UnknownUnit,
    /// More than Go's 292 years.
    #[error("it is too long")]
    TooLong,
}

/// Parses `1h15m30.918s`. A plain `0` needs no unit.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    if text.starts_with('-') {
        return Err(DurationError::Negative);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    match rest {
        "" => return Err(DurationError::Empty),
        "0" => return Ok(Duration::ZERO),
        _ => {}
    }
    let mut nanos = 0;
    while !rest.is_empty() {
        let (part, after) = leading_part(rest)?;
        nanos += part;
        rest = after;
        if nanos > MAX_NANOS {
            return Err(DurationError::TooLong);
        }
    }
    let nanos = u64::try_from(nanos).map_err(|_| DurationError::TooLong)?;
    Ok(Duration::from_nanos(nanos))
}

/// Prints as Go does: `1m30s`, `1h0m0s`, `1.5s`, `500ms`, `0s`.
#[must_use]
pub fn format(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    match nanos {
        0 => "0s".to_owned(),
        1..MICROSECOND => format!("{nanos}ns"),
        MICROSECOND..MILLISECOND => format!("{}µs", decimal(nanos, MICROSECOND)),
        MILLISECOND..SECOND => format!("{}ms", decimal(nanos, MILLISECOND)),
        SECOND..MINUTE => format!("{}s", decimal(nanos, SECOND)),
        MINUTE..HOUR => format!("{}m{}s", nanos / MINUTE, decimal(nanos % MINUTE, SECOND)),
        _ => {
            let below_hour = nanos % HOUR;
            let seconds = decimal(below_hour % MINUTE, SECOND);
            format!("{}h{}m{seconds}s", nanos / HOUR, below_hour / MINUTE)
        }
    }
}

/// The first number with its unit, in nanoseconds, and what follows it. Fractions of a nanosecond are cut off, as in Go.
fn leading_part(text: &str) -> Result<(u128, &str), DurationError> {
    let (whole, rest) = split_while(text, |c| c.is_ascii_digit());
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => split_while(rest, |c| c.is_ascii_digit()),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(DurationError::NoNumber);
    }
    let (name, rest) = split_while(rest, |c| c != '.' && !c.is_ascii_digit());
    let unit = match UNITS.iter().find(|(unit, _)| *unit == name) {
        Some((_, nanos)) => *nanos,
        None if name.is_empty() => return Err(DurationError::NoUnit),
        None => return Err(DurationError::UnknownUnit),
    };
    // Each is within Go's limit, so that no sum overflows.
    let whole: u64 = match whole {
        "" => 0,
        digits => digits.parse().map_err(|_| DurationError::TooLong)?,
    };
    let digits = fraction.bytes().take(FRACTION_DIGITS);
    let (sum, scale) = digits.fold((0, 1), |(sum, scale), digit| {
        (sum * 10 + u128::from(digit - b'0'), scale * 10)
    });
    Ok((u128::from(whole) * unit + sum * unit / scale, rest))
}

/// Splits off the beginning whose characters are such.
fn split_while(text: &str, is_such: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !is_such(c)).unwrap_or(text.len()))
}

/// `nanos` in `unit`s with as many digits after the point as it takes.
fn decimal(nanos: u128, unit: u128) -> String {
    let (whole, fraction) = (nanos / unit, nanos % unit);
    if fraction == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_go_parses() {
        for (text, nanos) in [
            ("0", 0),
            ("+0", 0),
            ("0s", 0),
            ("500ms", 500_000_000),
            ("1m30s", 90_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("+5s", 5_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("5.0s", 5_000_000_000),
            ("1us", 1_000),
            ("1µs", 1_000),
            ("1μs", 1_000),
            ("1h15m30.918273645s", 4_530_918_273_645),
            ("0.9999999999999999999999s", 999_999_999),
            ("0.100000000000000000000h", 360_000_000_000),
            ("9223372036854775807ns", i64::MAX as u64),
            ("1h1h", 7_200_000_000_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn what_go_refuses() {
        for (text, error) in [
            ("", DurationError::Empty),
            ("+", DurationError::Empty),
            ("-1s", DurationError::Negative),
            ("3", DurationError::NoUnit),
            ("00", DurationError::NoUnit),
            ("1m5", DurationError::NoUnit),
            ("s", DurationError::NoNumber),
            (".s", DurationError::NoNumber),
            ("+.s", DurationError::NoNumber),
            (" 1s", DurationError::NoNumber),
            ("1s ", DurationError::UnknownUnit),
            ("1 s", DurationError::UnknownUnit),
            ("1d", DurationError::UnknownUnit),
            ("1S", DurationError::UnknownUnit),
            ("1e3s", DurationError::UnknownUnit),
            ("9223372036854775808ns", DurationError::TooLong),
            ("99999999999999999999h", DurationError::TooLong),
            ("2562048h", DurationError::TooLong),
            ("18446744073709551615h", DurationError::TooLong),
        ] {
            assert_eq!(parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn prints_as_go_does() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1µs"),
            (2_200_000, "2.2ms"),
            (3_300_000_000, "3.3s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (3_600_000_000_000, "1h0m0s"),
            (i64::MAX as u64, "2562047h47m16.854775807s"),
        ] {
            assert_eq!(format(Duration::from_nanos(nanos)), text);
        }
    }

    proptest! {
        #[test]
        fn printed_durations_parse_to_themselves(nanos in 0..=i64::MAX as u64, shift in 0_u32..63) {
            let duration = Duration::from_nanos(nanos >> shift);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC*", near in "[-+0-9.nuµmsh]{0,40}") {
            let _ = parse(&text);
            let _ = parse(&near);
        }
    }
}
