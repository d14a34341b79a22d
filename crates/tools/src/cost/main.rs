//! What the proxy costs, beside HAProxy, nginx and Envoy in the same run. See benches/README.md.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a benchmark: a failure is a panic with a message"
)]

mod frozen;
mod handshakes;
#[path = "../haproxy.rs"]
mod haproxy;
mod instructions;
mod lab;
mod latency;
mod lists;
mod load;
mod meter;
mod origin;
mod replaced;
mod requests;
mod rivals;
mod scale;
mod spread;
mod streams;
mod table;
mod training;
mod watched;
mod watches;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::{Parser, Subcommand};
use testkit::process::program;

use lab::Plan;
use meter::Meter;
use rivals::Rival;

/// What the proxy costs, beside HAProxy, nginx and Envoy.
#[derive(Parser)]
struct Arguments {
    /// The proxy's program; default: the one that was built beside this one. Measure an optimized one.
    #[arg(long)]
    program: Option<PathBuf>,
    /// What it is compared with; default: HAProxy, and of the others those that are installed.
    #[arg(long, value_delimiter = ',')]
    against: Vec<Rival>,
    /// Envoy's program.
    #[arg(long, default_value = "envoy")]
    envoy: PathBuf,
    /// All are measured in each round. Medians count.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(subcommand)]
    work: Work,
}

#[derive(Subcommand)]
enum Work {
    /// Processor time of a request, over HTTP/2 on 16 connections.
    Requests(requests::Options),
    /// The same with HTTP/1.1 on the side of the clients.
    Http1(requests::Options),
    /// The same through two programs, one behind the other.
    Rerouted(requests::Options),
    /// Memory of an idle watch.
    Watches(watches::Idle),
    /// Processor time of a watch's event.
    Events(watches::Events),
    /// Watches whose apiserver is killed: until all go on, and what that takes.
    Replaced(replaced::Options),
    /// Processor time of a new connection with a client certificate.
    Handshakes(handshakes::Options),
    /// Processor time and memory of long answers.
    Lists(lists::Options),
    /// What is added to the time of a request.
    Latency(latency::Options),
    /// How long reads wait for a frozen kube-apiserver; real ones are needed.
    Frozen(frozen::Options),
    /// All tables above but two: watches whose apiserver is killed, and frozen ones.
    All,
    /// What a proxy takes in a cluster of many servers and custom resources.
    Scale(scale::Options),
    /// How clients spread over three servers again after one was restarted, by `serving.goawayChance`.
    Spread(spread::Options),
    /// Instructions of a request in user space, by valgrind. Exits with 1 above a limit.
    Instructions(instructions::Options),
    /// All of this work by the proxy alone, for a profile of an instrumented program; see deploy/release/profile.sh.
    Training,
}

#[tokio::main]
async fn main() -> ExitCode {
    testkit::install_crypto_provider();
    leave_a_processor();
    let arguments = Arguments::parse();
    let rivals = match arguments.against.is_empty() {
        true => Rival::installed(&arguments.envoy),
        false => arguments.against,
    };
    let plan = Plan {
        program: arguments
            .program
            .unwrap_or_else(|| program("kube-interop-proxy")),
        rivals,
        envoy: arguments.envoy,
        rounds: arguments.rounds,
        meter: Meter::new(),
    };
    // What was started ends with what is dropped.
    tokio::select! {
        code = run(&plan, arguments.work) => code,
        () = testkit::process::told_to_stop() => ExitCode::FAILURE,
    }
}

async fn run(plan: &Plan, work: Work) -> ExitCode {
    match work {
        Work::Requests(options) => requests::http2(plan, &options).await,
        Work::Http1(options) => requests::http1(plan, &options).await,
        Work::Rerouted(options) => requests::rerouted(plan, &options).await,
        Work::Watches(options) => watches::idle(plan, &options).await,
        Work::Events(options) => watches::events(plan, &options).await,
        Work::Replaced(options) => replaced::measure(plan, &options).await,
        Work::Handshakes(options) => handshakes::measure(plan, &options).await,
        Work::Lists(options) => lists::measure(plan, &options).await,
        Work::Latency(options) => latency::measure(plan, &options).await,
        Work::Frozen(options) => frozen::measure(plan, &options).await,
        Work::Scale(options) => scale::measure(plan, &options).await,
        Work::Spread(options) => spread::measure(plan, &options).await,
        Work::All => all(plan).await,
        Work::Training => training::train(plan).await,
        Work::Instructions(options) => return instructions::check(plan, &options).await,
    }
    ExitCode::SUCCESS
}

async fn all(plan: &Plan) {
    requests::http2(plan, &Default::default()).await;
    requests::http1(plan, &Default::default()).await;
    requests::rerouted(plan, &Default::default()).await;
    watches::idle(plan, &Default::default()).await;
    watches::events(plan, &Default::default()).await;
    handshakes::measure(plan, &Default::default()).await;
    lists::measure(plan, &Default::default()).await;
    latency::measure(plan, &Default::default()).await;
}

/// This process, and what it starts, leave one processor to the programs under test.
fn leave_a_processor() {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let others: Vec<_> = (0..processors)
        .map(|number| number.to_string())
        .filter(|number| number != lab::PROCESSOR)
        .collect();
    let set = Command::new("taskset")
        .args([
            "-a",
            "-c",
            "-p",
            &others.join(","),
            &std::process::id().to_string(),
        ])
        .output();
    let set = set.expect("taskset; install util-linux");
    assert!(
        set.status.success(),
        "{}",
        String::from_utf8_lossy(&set.stderr)
    );
}
