//! What operators can measure of requests.

mod service_levels;
