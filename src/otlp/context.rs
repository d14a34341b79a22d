//! `traceparent` of W3C Trace Context. Pure.

use data_encoding::HEXLOWER;
use http::header::{HeaderMap, HeaderName, HeaderValue};

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Bytes of version 00. Later versions may append fields.
const LENGTH: usize = 55;
const SAMPLED: u8 = 1;

/// What `traceparent` says: the trace, the span that a request belongs to, and whether that span is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub sampled: bool,
}

impl TraceContext {
    /// Reads the one header; several, or one that is not valid, count as none.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let value = values.next()?;
        match values.next() {
            None => Self::read(value.as_bytes()),
            Some(_) => None,
        }
    }

    fn read(value: &[u8]) -> Option<Self> {
        let (fixed, more) = value.split_at_checked(LENGTH)?;
        let mut parts = fixed.split(|byte| *byte == b'-');
        let [version] = hex(parts.next()?)?;
        let trace_id: [u8; 16] = hex(parts.next()?)?;
        let span_id: [u8; 8] = hex(parts.next()?)?;
        let [flags] = hex(parts.next()?)?;
        let ends = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.is_empty() || more.starts_with(b"-"),
        };
        let valid = ends && trace_id != [0; 16] && span_id != [0; 8];
        valid.then_some(Self {
            trace_id,
            span_id,
            sampled: flags & SAMPLED != 0,
        })
    }

    /// The header for the next server.
    pub fn header(&self) -> Option<HeaderValue> {
        let [trace_id, span_id] = [&self.trace_id[..], &self.span_id].map(|id| HEXLOWER.encode(id));
        let text = format!("00-{trace_id}-{span_id}-{:02}", u8::from(self.sampled));
        HeaderValue::try_from(text).ok()
    }
}

/// Exactly so many bytes in lower case hexadecimal digits.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let bytes = (text.len() == 2 * N).then(|| HEXLOWER.decode(text))?;
    bytes.ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn read(values: &[&str]) -> Option<TraceContext> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, HeaderValue::from_str(value).unwrap());
        }
        TraceContext::of(&headers)
    }

    #[test]
    fn what_is_read_is_written_again() {
        for value in [VALID, &VALID.replace("-01", "-00")] {
            let context = read(&[value]).unwrap();
            assert_eq!(context.sampled, value == VALID);
            assert_eq!(context.header().unwrap(), value);
        }
        // Unknown flags are not passed on, and a later version is answered with ours.
        for value in [
            VALID.replace("-01", "-ff"),
            VALID.replacen("00", "cc", 1),
            VALID.replacen("00", "cc", 1) + "-what-ever",
        ] {
            assert_eq!(read(&[&value]).unwrap().header().unwrap(), VALID, "{value}");
        }
    }

    #[test]
    fn what_is_not_valid_is_none() {
        for value in [
            "",
            "00",
            &VALID[..54],
            &format!("{VALID}-"),
            &format!("{VALID}0"),
            &VALID.replacen("00", "ff", 1),
            &(VALID.replacen("00", "cc", 1) + "x"),
            &VALID.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &VALID.replace("b7ad6b7169203331", &"0".repeat(16)),
            &VALID.to_uppercase(),
            &VALID.replace("-b7", "_b7"),
            &VALID.replace("-01", "-0g"),
            &VALID.replace("9c-b7ad6b7169203331", "9cb-7ad6b7169203331"),
        ] {
            assert_eq!(read(&[value]), None, "{value}");
        }
        assert_eq!(read(&[VALID, VALID]), None);
        assert_eq!(read(&[]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_not(value in proptest::collection::vec(any::<u8>(), 0..70)) {
            if let Some(context) = TraceContext::read(&value) {
                let again = context.header().unwrap();
                prop_assert_eq!(TraceContext::read(again.as_bytes()), Some(context));
            }
        }
    }
}
