//! What requests and watches cost the proxy, beside HAProxy in the same run. See benches/README.md.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a benchmark: a failure is a panic with a message"
)]

mod instructions;
mod lab;
mod requests;
mod watches;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use testkit::process::program;

/// What requests and watches cost the proxy, beside HAProxy.
#[derive(Parser)]
struct Arguments {
    /// The proxy's program; default: the one that was built beside this one. Measure an optimized one.
    #[arg(long)]
    program: Option<PathBuf>,
    #[command(subcommand)]
    work: Work,
}

#[derive(Subcommand)]
enum Work {
    /// Processor time of a request, over HTTP/2 on 16 connections.
    Requests(requests::Options),
    /// Memory of an idle watch, and processor time of its events.
    Watches(watches::Options),
    /// Instructions of a request in user space, by valgrind. Exits with 1 above a limit.
    Instructions(instructions::Options),
}

#[tokio::main]
async fn main() -> ExitCode {
    testkit::install_crypto_provider();
    let arguments = Arguments::parse();
    let program = arguments
        .program
        .unwrap_or_else(|| program("kube-interop-proxy"));
    match arguments.work {
        Work::Requests(options) => requests::measure(&program, &options).await,
        Work::Watches(options) => watches::measure(&program, &options).await,
        Work::Instructions(options) => return instructions::check(&program, &options).await,
    }
    ExitCode::SUCCESS
}
