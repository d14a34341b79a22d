//! Go's notation of durations, as in every Kubernetes configuration: `500ms`, `1m30s`, `1.5h`.

use std::time::Duration;

/// Go keeps nanoseconds in an `int64`: about 292 years.
const MAX_NANOS: u128 = i64::MAX as u128;

const UNITS: [(&str, u128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    // The micro sign, and the Greek letter.
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Parses what Go's `time.ParseDuration` does, except negative durations and more than 19 digits after a point.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut sum = 0;
    loop {
        let is_digit = |c: char| c == '.' || c.is_ascii_digit();
        let (number, after) = rest.split_at(rest.find(|c| !is_digit(c))?);
        let (unit, after) = after.split_at(after.find(is_digit).unwrap_or(after.len()));
        sum += nanos(number, unit)?;
        if after.is_empty() {
            let nanos = u64::try_from(sum).ok();
            return nanos.filter(|_| sum <= MAX_NANOS).map(Duration::from_nanos);
        }
        rest = after;
    }
}

/// Fractions of a nanosecond are cut off, as in Go.
fn nanos(number: &str, unit: &str) -> Option<u128> {
    let (_, unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
    if matches!(number, "" | ".") {
        return None;
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = |text: &str| match text {
        "" => Some(0),
        text => text.parse::<u64>().ok().map(u128::from),
    };
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    Some(digits(whole)? * unit + digits(fraction)? * unit / scale)
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
            ("0.9999999999999999999s", 999_999_999),
            ("0.100000000000000000000h", 360_000_000_000),
            ("9223372036854775807ns", i64::MAX as u64),
            ("1h1h", 7_200_000_000_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn what_go_refuses() {
        for text in [
            "",
            "+",
            "-1s",
            "3",
            "00",
            "1m5",
            "s",
            ".s",
            "+.s",
            "1.2.3s",
            " 1s",
            "1s ",
            "1 s",
            "1d",
            "1S",
            "1e3s",
            "9223372036854775808ns",
            "99999999999999999999h",
            "2562048h",
            "18446744073709551615h",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC*", near in "[-+0-9.nuµmsh]{0,40}") {
            let _ = parse(&text);
            let _ = parse(&near);
        }
    }
}
