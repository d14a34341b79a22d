//! Spans of requests, sent to an OTLP receiver (`tracing.endpoint`).
//!
//! [`context`] reads and writes W3C `traceparent`. A request that [`Tracer::sample`] chooses gets an open span
//! ([`span`]). When it ends, the span goes into a queue of limited length, from which one task sends batches
//! ([`export`]). A request never waits for the receiver: a span that finds the queue full is dropped and counted.

pub mod context;
pub mod export;
pub mod metrics;
pub mod span;

pub use export::{Tracer, start};
