//! What operators can measure of requests.

mod receiver;
mod service_levels;
mod tracing;
