//! Compares other machines' clocks with this one, by the `Date` of their responses. Pure.
//!
//! `Date` has whole seconds, and the response took some time: so the difference is a range, and only its minimum counts. A
//! response through a proxy has that proxy's time, which is its machine's.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::DATE;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use super::finding::Finding;
use super::told;

/// Seconds of difference from which on a finding is a warning.
const NOTICEABLE: f64 = 1.0;
/// Seconds from which on new tokens and certificates of one machine are not valid yet on the other.
const HARMFUL: f64 = 60.0;

/// Minimum number of seconds by which a clock is ahead of this machine's; negative: behind.
pub type Skew = f64;

/// `sent`: when the request was sent; `took`: until the response came. `None` without a valid `Date`.
pub fn skew(headers: &HeaderMap, sent: SystemTime, took: Duration) -> Option<Skew> {
    let text = headers.get(DATE)?.to_str().ok()?;
    let there = OffsetDateTime::parse(text, &Rfc2822).ok()?;
    let there = there.unix_timestamp() as f64;
    let sent = sent
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()?
        .as_secs_f64();
    let (behind, ahead) = (there + 1.0 - sent, there - (sent + took.as_secs_f64()));
    Some(if ahead > 0.0 { ahead } else { behind.min(0.0) })
}

/// `longest`: largest difference that does no harm, if below `HARMFUL`.
pub fn findings(others: &[(String, Skew)], longest: Duration) -> Vec<Finding> {
    let harmful = HARMFUL.min(longest.as_secs_f64());
    let off = others.iter().filter(|(_, skew)| skew.abs() > NOTICEABLE);
    let found: Vec<_> = off
        .map(|(about, skew)| {
            let about = format!("clock of {about}");
            let side = if *skew > 0.0 { "ahead of" } else { "behind" };
            let by = format!("{:.0} s {side}", skew.abs());
            match skew.abs() > harmful {
                true => told::clock_wrong(about, by),
                false => told::clock_off(about, by),
            }
        })
        .collect();
    match (found.is_empty(), others.len()) {
        (true, 0) => vec![told::no_clock("clock")],
        (true, count) => vec![told::clocks_agree("clock", count)],
        (false, _) => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(date: &str, sent: f64, took: f64) -> Option<Skew> {
        let headers = HeaderMap::from_iter([(DATE, date.parse().unwrap())]);
        let sent = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(sent);
        skew(&headers, sent, Duration::from_secs_f64(took))
    }

    #[test]
    fn only_what_is_certain_counts() {
        // 784111777 in Unix time.
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(at(date, 784_111_777.0, 0.1), Some(0.0));
        assert_eq!(at(date, 784_111_777.9, 0.0), Some(0.0));
        assert_eq!(at(date, 784_111_770.0, 10.0), Some(0.0));
        assert_eq!(at(date, 784_111_770.0, 1.0), Some(6.0));
        assert_eq!(at(date, 784_111_780.0, 1.0), Some(-2.0));
        assert_eq!(at("yesterday", 0.0, 0.0), None);
    }

    #[test]
    fn a_minute_is_a_problem_and_seconds_are_not() {
        let hour = Duration::from_secs(3600);
        let of = |skew| findings(&[("peer b".to_owned(), skew)], hour)[0].to_string();
        assert!(of(0.9).starts_with("ok      clock: within a second"));
        assert!(of(-3.0).starts_with("warning clock of peer b: 3 s behind this machine's; do: "));
        assert!(of(61.0).starts_with("problem clock of peer b: 61 s ahead of this machine's"));
    }
}
