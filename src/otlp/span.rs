//! A span that is open, and its form in OTLP.

use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};

use super::context::TraceContext;

/// Longest text of an attribute, in characters. Clients choose paths, and spans wait in memory.
const LONGEST: usize = 512;

/// The span of one request, from its header to the end of its answer.
#[derive(Debug)]
pub struct OpenSpan {
    /// This span. Servers that the request is sent to continue it.
    pub context: TraceContext,
    span: Span,
}

impl OpenSpan {
    pub fn begin(context: TraceContext, parent: Option<TraceContext>, name: &str) -> Self {
        let parent = parent.map_or(Vec::new(), |parent| parent.span_id.to_vec());
        Self {
            context,
            span: Span {
                trace_id: context.trace_id.to_vec(),
                span_id: context.span_id.to_vec(),
                parent_span_id: parent,
                name: name.to_owned(),
                kind: SpanKind::Server.into(),
                start_time_unix_nano: now(),
                ..Span::default()
            },
        }
    }

    pub fn text(&mut self, key: &str, text: &str) {
        self.span.attributes.push(text_attribute(key, text));
    }

    pub fn number(&mut self, key: &str, number: i64) {
        let value = any_value::Value::IntValue(number);
        self.span.attributes.push(attribute(key, value));
    }

    /// Something that happens now.
    pub fn event(&mut self, name: &str, key: &str, text: &str) {
        self.span.events.push(Event {
            time_unix_nano: now(),
            name: name.to_owned(),
            attributes: vec![text_attribute(key, text)],
            ..Event::default()
        });
    }

    /// Ends it now. `failed`: the request did, through no fault of its client.
    pub fn end(mut self, failed: bool) -> Span {
        if failed {
            self.span.status = Some(Status {
                code: StatusCode::Error.into(),
                ..Status::default()
            });
        }
        self.span.end_time_unix_nano = now();
        self.span
    }
}

pub(super) fn text_attribute(key: &str, text: &str) -> KeyValue {
    let text = text.chars().take(LONGEST).collect();
    attribute(key, any_value::Value::StringValue(text))
}

fn attribute(key: &str, value: any_value::Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}
