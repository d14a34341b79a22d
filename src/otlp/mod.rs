//! Spans of requests, sent to an OTLP receiver (`tracing.endpoint`) by OpenTelemetry's SDK. `app` starts it, and
//! `relay::observe` fills the spans.
//!
//! [`context`] reads and writes W3C `traceparent`. A request that [`Tracer::sample`] chooses gets a span. When the span is
//! dropped, it goes into the SDK's queue, from which a thread of the SDK sends batches ([`export`]). A request never waits
//! for the receiver: a span that finds the queue full is dropped and counted.

pub mod context;
pub mod export;
pub mod metrics;

pub use export::{Tracer, start};
