//! kubectl's own tests (`test/cmd` of Kubernetes 1.20.2) with real parts: directly against one kube-apiserver, and through
//! proxies of a mixed cluster of which no server serves everything. Prints what failed in either, and fails if something
//! failed only through the proxies. `tests/kubectl-suite.sh` builds what it needs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a program for people to watch: a failure is a panic with a message"
)]

mod cluster;
mod suite;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use self::cluster::Cluster;
use self::suite::{Outcome, Suite};

#[derive(Parser)]
struct Args {
    /// Tests to run, as `create_job`; default: all.
    tests: Vec<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    testkit::install_crypto_provider();
    let suite = Suite::new(Args::parse().tests);
    println!("{} tests, without proxies", suite.len());
    let direct = run(&suite, Cluster::direct().await).await;
    println!("{} tests, through proxies", suite.len());
    let proxied = run(&suite, Cluster::proxied().await).await;
    print!("{}", table(&direct, &proxied));
    let worse: Vec<_> = proxied.failed.difference(&direct.failed).collect();
    match worse.is_empty() {
        true => println!("nothing failed only through proxies"),
        false => println!("FAILED only through proxies: {worse:?}"),
    }
    match worse.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

async fn run(suite: &Suite, cluster: Cluster) -> Outcome {
    let started = Instant::now();
    let outcome = suite.run(&cluster).await;
    let (failed, seconds) = (outcome.failed.len(), started.elapsed().as_secs());
    println!(
        "    {failed} failed, {seconds} s; output: {}",
        outcome.log.display()
    );
    outcome
}

/// What failed in either.
fn table(direct: &Outcome, proxied: &Outcome) -> String {
    let mark = |outcome: &Outcome, test| match outcome.failed.contains(test) {
        true => "failed",
        false => "ok",
    };
    let mut table = format!("\n{:<44}{:<10}proxied\n", "test", "direct");
    for test in direct.failed.union(&proxied.failed) {
        let (direct, proxied) = (mark(direct, test), mark(proxied, test));
        table += &format!("{test:<44}{direct:<10}{proxied}\n");
    }
    table + "\n"
}
