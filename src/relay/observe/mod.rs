//! What operators see of requests: metrics, spans and the access log. Written by all that handles requests; nothing here
//! decides anything.

mod access_log;
mod meter;
mod metrics;

pub use self::access_log::AccessEntry;
pub use self::meter::{NO_DECISION, RequestMeter, RequestSpan, VerbClass};
pub use self::metrics::Metrics;
