//! kubectl's own tests (`test/cmd` of Kubernetes 1.20.2) with real parts: directly against one kube-apiserver, and through
//! proxies of a mixed cluster of which no server serves everything. Prints what failed in either, and fails if something
//! failed only through the proxies, twice. `tests/kubectl-suite.sh` builds what it needs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a program for people to watch: a failure is a panic with a message"
)]

mod cluster;
mod suite;

use std::collections::BTreeSet;
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
    println!("{} tests without proxies", suite.len());
    let direct = run(&suite, &Cluster::direct().await).await;
    println!("{} tests through proxies", suite.len());
    let cluster = Cluster::proxied().await;
    let proxied = run(&suite, &cluster).await;
    let worse: BTreeSet<_> = proxied.failed.difference(&direct.failed).cloned().collect();
    let mut still = BTreeSet::new();
    if !worse.is_empty() {
        // Some look only once for what a controller has not done yet.
        println!("again through proxies: {worse:?}");
        still = run(&suite.only(&worse), &cluster).await.failed;
    }
    print!("{}", table(&direct, &proxied, &still));
    match still.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

async fn run(suite: &Suite, cluster: &Cluster) -> Outcome {
    let started = Instant::now();
    let outcome = suite.run(cluster).await;
    let (failed, seconds) = (outcome.failed.len(), started.elapsed().as_secs());
    let log = outcome.log.display();
    println!("    {failed} failed, {seconds} s; output: {log}");
    outcome
}

/// What failed in either. `still`: through proxies also the second time.
fn table(direct: &Outcome, proxied: &Outcome, still: &BTreeSet<String>) -> String {
    let mut table = format!("\n{:<36}{:<10}through proxies\n", "test", "direct");
    for test in direct.failed.union(&proxied.failed) {
        let (direct, proxied) = (direct.failed.contains(test), proxied.failed.contains(test));
        let proxied = match (direct, proxied) {
            (_, false) => "ok",
            (false, true) if still.contains(test) => "FAILED, only there",
            (false, true) => "failed, then ok",
            (true, true) => "failed",
        };
        let direct = if direct { "failed" } else { "ok" };
        table += &format!("{test:<36}{direct:<10}{proxied}\n");
    }
    table + "\n"
}
