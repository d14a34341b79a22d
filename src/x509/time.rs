//! Reads times of certificates, in Unix seconds.

use super::der::{DerReader, GENERALIZED_TIME, UTC_TIME};

/// The next value, a UTCTime or a GeneralizedTime.
pub(super) fn read(der: &mut DerReader<'_>) -> Option<i64> {
    let value = der.value()?;
    let mut digits = Digits(value.content);
    let year = match value.tag {
        UTC_TIME => match digits.number(2)? {
            year @ 50.. => 1900 + year,
            year => 2000 + year,
        },
        GENERALIZED_TIME => digits.number(4)?,
        _ => return None,
    };
    let (month, day) = (digits.number(2)?, digits.number(2)?);
    let (hour, minute) = (digits.number(2)?, digits.number(2)?);
    let second = match digits.0.first() {
        // Go accepts a UTCTime without seconds.
        Some(b'0'..=b'9') => digits.number(2)?,
        _ if value.tag == UTC_TIME => 0,
        _ => return None,
    };
    let offset = digits.offset()?;
    let good = (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let seconds = ((days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    good.then_some(seconds - offset)
}

struct Digits<'a>(&'a [u8]);

impl Digits<'_> {
    fn number(&mut self, digits: usize) -> Option<i64> {
        let (taken, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        taken.iter().try_fold(0, |number, byte| {
            let digit = byte.is_ascii_digit().then(|| i64::from(byte - b'0'))?;
            Some(number * 10 + digit)
        })
    }

    /// The rest: `Z`, or an offset other than zero. In seconds.
    fn offset(&mut self) -> Option<i64> {
        let (sign, rest) = match self.0.split_first()? {
            (b'Z', []) => return Some(0),
            (b'+', rest) => (1, rest),
            (b'-', rest) => (-1, rest),
            _ => return None,
        };
        self.0 = rest;
        let (hours, minutes) = (self.number(2)?, self.number(2)?);
        let good = self.0.is_empty() && hours < 24 && minutes < 60 && hours + minutes > 0;
        good.then_some(sign * (hours * 60 + minutes) * 60)
    }
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970 in the Gregorian calendar; years begin in March here.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let month = (month + 9) % 12;
    let leaps = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days_before = (153 * month + 2) / 5;
    year * 365 + leaps + days_before + day - 719_469
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(tag: u8, text: &str) -> Option<i64> {
        let mut der = vec![tag, u8::try_from(text.len()).unwrap()];
        der.extend(text.bytes());
        read(&mut DerReader::new(&der))
    }

    #[test]
    fn times_are_read_as_go_reads_them() {
        for (text, seconds) in [
            ("700101000000Z", Some(0)),
            ("691231235959Z", Some(-1)),
            ("500101000000Z", Some(-631_152_000)),
            ("491231235959Z", Some(2_524_607_999)),
            ("261122093000Z", Some(1_795_339_800)),
            ("2611220930Z", Some(1_795_339_800)),
            ("261122093000+0130", Some(1_795_334_400)),
            ("261122093000+0000", None),
            ("260229000000Z", None),
            ("240229000000Z", Some(1_709_164_800)),
            ("261122093000", None),
            ("261122093000.5Z", None),
            ("261122246000Z", None),
        ] {
            assert_eq!(time(UTC_TIME, text), seconds, "{text}");
        }
        for (text, seconds) in [
            ("20500101000000Z", Some(2_524_608_000)),
            ("99991231235959Z", Some(253_402_300_799)),
            ("00000301000000Z", Some(-62_162_035_200)),
            ("205001010000Z", None),
        ] {
            assert_eq!(time(GENERALIZED_TIME, text), seconds, "{text}");
        }
    }
}
