//! What operators see of requests: metrics, spans, the access log, and the last reroutes and refusals of the status page.
//! Written by all that handles requests; nothing here decides anything.

mod access_log;
mod metrics;
mod recent;
mod request_metrics;
mod request_span;

pub use self::access_log::{AccessEntry, WatchRequest};
pub use self::metrics::Metrics;
pub use self::recent::{RecentEvents, RequestEvent, unix};
pub use self::request_metrics::{NO_DECISION, RequestMeter, VerbClass};
pub use self::request_span::RequestSpan;
