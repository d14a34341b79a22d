//! `Content-Length`, on which both sides of a connection must agree.

use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderValue};

/// The value of a repeated Content-Length. The values were compared when the request was read.
pub fn single_length(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let first = lengths.next()?;
    let several = lengths.next().is_some() || first.as_bytes().contains(&b',');
    let one = first
        .as_bytes()
        .split(|byte| *byte == b',')
        .next()?
        .trim_ascii();
    several.then(|| HeaderValue::from_bytes(one).ok())?
}

/// Whether all values of `Content-Length` are the same number (RFC 9110, section 8.6).
pub fn lengths_agree(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONTENT_LENGTH).iter();
    let mut lengths = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let number = |value: &[u8]| {
        let digits = value.trim_ascii();
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        is_number.then(|| std::str::from_utf8(digits).ok()?.parse::<u64>().ok())?
    };
    match lengths.next() {
        None => true,
        Some(first) => {
            let first = number(first);
            first.is_some() && lengths.all(|other| number(other) == first)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_agree_however_often_they_are_said() {
        let one = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_LENGTH, HeaderValue::from_str(value).unwrap());
            }
            lengths_agree(&headers)
        };
        for values in [&[][..], &["5"], &["5", "5"], &["5, 5"], &["0", "00"]] {
            assert!(one(values), "{values:?}");
        }
        for values in [
            &["5", "6"][..],
            &["5,6"],
            &["+5"],
            &[""],
            &["5,"],
            &["99999999999999999999"],
        ] {
            assert!(!one(values), "{values:?}");
        }
    }
}
