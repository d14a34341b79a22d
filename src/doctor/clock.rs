//! Whether others' clocks agree with this machine's, by the `Date` of their answers. Pure.
//!
//! A `Date` has whole seconds, and the answer took a while: what is known is a range, and only what is outside of it for
//! certain counts. What comes through a proxy has that one's time, which is its machine's.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use http::header::DATE;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use super::finding::Finding;

/// More than this is worth a word.
const NOTICEABLE: f64 = 1.0;
/// More than this, and a token that is fresh here is not valid yet there, or a certificate.
const HARMFUL: f64 = 60.0;

/// By how many seconds a clock is ahead of this machine's, at least; negative: behind.
pub type Skew = f64;

/// What an answer tells of the clock there: it was asked for at `asked` and took so long. `None`: it has no `Date`.
pub fn skew(headers: &HeaderMap, asked: SystemTime, took: Duration) -> Option<Skew> {
    let text = headers.get(DATE)?.to_str().ok()?;
    let there = OffsetDateTime::parse(text, &Rfc2822).ok()?;
    let there = there.unix_timestamp() as f64;
    let asked = asked
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()?
        .as_secs_f64();
    let (behind, ahead) = (there + 1.0 - asked, there - (asked + took.as_secs_f64()));
    Some(if ahead > 0.0 { ahead } else { behind.min(0.0) })
}

/// What is to be said of the clocks of `others`, each with its name.
pub fn findings(others: &[(String, Skew)], longest: Duration) -> Vec<Finding> {
    let harmful = HARMFUL.min(longest.as_secs_f64());
    let off = others.iter().filter(|(_, skew)| skew.abs() > NOTICEABLE);
    let found: Vec<_> = off
        .map(|(about, skew)| {
            let about = format!("clock of {about}");
            let side = if *skew > 0.0 { "ahead of" } else { "behind" };
            let what = format!("{:.0} s {side} this machine's", skew.abs());
            let advice = "have both machines' clocks set by one time service (chrony, ntpd)";
            match skew.abs() > harmful {
                true => Finding::problem(about, what, advice),
                false => Finding::warning(about, what, advice),
            }
        })
        .collect();
    match (found.is_empty(), others.len()) {
        (true, 0) => vec![Finding::info("clock", "nobody told the time")],
        (true, count) => vec![Finding::ok(
            "clock",
            format!("within a second of all others that told the time ({count})"),
        )],
        (false, _) => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(date: &str, asked: f64, took: f64) -> Option<Skew> {
        let headers = HeaderMap::from_iter([(DATE, date.parse().unwrap())]);
        let asked = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(asked);
        skew(&headers, asked, Duration::from_secs_f64(took))
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
