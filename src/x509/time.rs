//! Reads times of certificates, in Unix seconds.

use std::str::FromStr;

use ::time::{Date, Month, PrimitiveDateTime, Time};
use der::asn1::AnyRef;
use der::{Tag, Tagged as _};

use super::der::DerReader;

/// The next value, a UTCTime or a GeneralizedTime.
pub(super) fn read(der: &mut DerReader<'_>) -> Option<i64> {
    let value: AnyRef<'_> = der.read()?;
    let mut digits = Digits(value.value());
    let year = match value.tag() {
        Tag::UtcTime => match digits.number::<i32>(2)? {
            year @ 50.. => 1900 + year,
            year => 2000 + year,
        },
        Tag::GeneralizedTime => digits.number(4)?,
        _ => return None,
    };
    let month: u8 = digits.number(2)?;
    let date = Date::from_calendar_date(year, Month::try_from(month).ok()?, digits.number(2)?);
    let (hour, minute) = (digits.number(2)?, digits.number(2)?);
    let second = match digits.0.first() {
        // Go accepts a UTCTime without seconds.
        Some(b'0'..=b'9') => digits.number(2)?,
        _ if value.tag() == Tag::UtcTime => 0,
        _ => return None,
    };
    let time = Time::from_hms(hour, minute, second);
    let local = PrimitiveDateTime::new(date.ok()?, time.ok()?);
    Some(local.assume_utc().unix_timestamp() - digits.offset()?)
}

struct Digits<'a>(&'a [u8]);

impl Digits<'_> {
    fn number<N: FromStr>(&mut self, digits: usize) -> Option<N> {
        let (taken, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        // A sign would be parsed too.
        let number = std::str::from_utf8(taken).ok()?;
        let digits = taken.iter().all(u8::is_ascii_digit);
        digits.then(|| number.parse().ok()).flatten()
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
        let (hours, minutes): (i64, i64) = (self.number(2)?, self.number(2)?);
        let good = self.0.is_empty() && hours < 24 && minutes < 60 && hours + minutes > 0;
        good.then_some(sign * (hours * 60 + minutes) * 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(tag: Tag, text: &str) -> Option<i64> {
        let mut der = vec![tag.octet(), u8::try_from(text.len()).unwrap()];
        der.extend(text.bytes());
        read(&mut DerReader::new(&der)?)
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
            assert_eq!(time(Tag::UtcTime, text), seconds, "{text}");
        }
        for (text, seconds) in [
            ("20500101000000Z", Some(2_524_608_000)),
            ("99991231235959Z", Some(253_402_300_799)),
            ("00000301000000Z", Some(-62_162_035_200)),
            ("205001010000Z", None),
        ] {
            assert_eq!(time(Tag::GeneralizedTime, text), seconds, "{text}");
        }
    }
}
