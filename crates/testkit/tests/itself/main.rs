//! Tests of the test kit itself.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests: a failure is a panic with a message"
)]

mod double;
mod support;
