//! `traceparent` of W3C Trace Context, for `relay::observe`. Pure.
//!
//! The SDK's propagator allocates for each request that has one, and takes identifiers of any length.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Bytes of version 00. Later versions may append fields.
const LENGTH: usize = 55;

/// The span that a request belongs to. Several headers, or one that is not valid, count as none.
pub fn parent(headers: &HeaderMap) -> Option<SpanContext> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => read(value.to_str().ok()?),
        _ => None,
    }
}

fn read(value: &str) -> Option<SpanContext> {
    let (fixed, more) = value.split_at_checked(LENGTH)?;
    let has_form = fixed.bytes().enumerate().all(|(at, byte)| match at {
        2 | 35 | 52 => byte == b'-',
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    });
    let version = fixed.get(..2)?;
    let ends = more.is_empty() || version != "00" && more.starts_with('-');
    let flags = u8::from_str_radix(fixed.get(53..)?, 16).ok()?;
    let context = SpanContext::new(
        TraceId::from_hex(fixed.get(3..35)?).ok()?,
        SpanId::from_hex(fixed.get(36..52)?).ok()?,
        TraceFlags::new(flags) & TraceFlags::SAMPLED,
        true,
        TraceState::NONE,
    );
    (has_form && ends && version != "ff" && context.is_valid()).then_some(context)
}

/// The header that lets the next server continue a span.
pub fn header(span: &SpanContext) -> Option<HeaderValue> {
    let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags());
    HeaderValue::try_from(format!("00-{trace}-{id}-{flags:02x}")).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn read_all(values: &[&str]) -> Option<SpanContext> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, HeaderValue::from_str(value).unwrap());
        }
        parent(&headers)
    }

    #[test]
    fn what_is_read_is_written_again() {
        for value in [VALID, &VALID.replace("-01", "-00")] {
            let context = read_all(&[value]).unwrap();
            assert_eq!(context.is_sampled(), value == VALID);
            assert_eq!(header(&context).unwrap(), value);
        }
        // Unknown flags are not passed on, and a later version is answered with ours.
        for value in [
            VALID.replace("-01", "-ff"),
            VALID.replacen("00", "cc", 1),
            VALID.replacen("00", "cc", 1) + "-what-ever",
        ] {
            let context = read_all(&[&value]).unwrap();
            assert_eq!(header(&context).unwrap(), VALID, "{value}");
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
            assert_eq!(read_all(&[value]), None, "{value}");
        }
        assert_eq!(read_all(&[VALID, VALID]), None);
        assert_eq!(read_all(&[]), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(value in "[ -~]{0,70}|[0-9a-f]{2}-[0-9a-f+]{32}-[0-9a-f+]{16}-[0-9a-f]{2}.{0,2}") {
            if let Some(context) = read(&value) {
                let again = header(&context).unwrap();
                prop_assert_eq!(&value[2..53], &again.to_str().unwrap()[2..53]);
                prop_assert_eq!(read(again.to_str().unwrap()), Some(context));
            }
        }
    }
}
