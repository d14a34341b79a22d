//! What operators see of requests: metrics, spans and the access log. Written by all that handles requests; nothing here
//! decides anything.

mod meter;
mod metrics;

pub use self::meter::{AccessEntry, NO_DECISION, RequestMeter, RequestSpan, VerbClass, WatchSpan};
pub use self::metrics::Metrics;
