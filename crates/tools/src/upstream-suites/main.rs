//! Upstream's own suites with real parts: directly against one kube-apiserver of each version, and through proxies of a
//! mixed cluster of which no server serves everything. Prints what failed in either, and fails if something failed only
//! through the proxies, twice. `tests/kubectl-suite.sh` and `tests/e2e-suite.sh` build what they need.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a program for people to watch: a failure is a panic with a message"
)]

mod cluster;
mod e2e;
mod kubectl;
mod node;
mod outcome;
mod restarts;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use testkit::kube;

use self::cluster::Cluster;
use self::outcome::{Comparison, Outcome};

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    suite: Which,
    /// Restart apiservers and proxies one after the other, every 30 s, while the tests run through the proxies.
    #[arg(long, global = true)]
    restarts: bool,
    /// Leave the directories with the logs of all servers.
    #[arg(long, global = true)]
    keep: bool,
}

#[derive(Subcommand)]
enum Which {
    /// kubectl's own tests, test/cmd.
    Kubectl {
        /// Tests to run, as `create_job`; default: all.
        tests: Vec<String>,
    },
    /// Kubernetes' own end-to-end tests, those that need no container.
    E2e {
        /// Only those of them whose names match; as for --ginkgo.focus.
        focus: Option<String>,
    },
}

enum Suite {
    Kubectl(kubectl::Suite),
    E2e(e2e::Suite),
}

impl Suite {
    fn new(which: Which, restarts: bool) -> Self {
        match which {
            Which::Kubectl { tests } => Self::Kubectl(kubectl::Suite::new(tests)),
            Which::E2e { focus } => Self::E2e(e2e::Suite::new(focus, restarts)),
        }
    }

    /// The same with other tests.
    fn only(&self, tests: &BTreeSet<String>) -> Self {
        match self {
            Self::Kubectl(suite) => Self::Kubectl(suite.only(tests)),
            Self::E2e(suite) => Self::E2e(suite.only(tests)),
        }
    }

    async fn run(&self, cluster: &cluster::Place) -> Outcome {
        match self {
            Self::Kubectl(suite) => suite.run(cluster).await,
            Self::E2e(suite) => suite.run(cluster).await,
        }
    }

    /// Whether two runs at the same time take hardly longer than one.
    fn mostly_waits(&self) -> bool {
        matches!(self, Self::E2e(_))
    }

    /// The cluster that its tests are made for.
    fn needs(&self) -> &'static cluster::Needs {
        match self {
            Self::Kubectl(_) => &kubectl::NEEDS,
            Self::E2e(_) => &e2e::NEEDS,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    testkit::install_crypto_provider();
    let same = tokio::select! {
        same = compare(Args::parse()) => same,
        // What was started ends with its handles.
        () = testkit::process::told_to_stop() => false,
    };
    match same {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Whether everything that passes without proxies passes through them.
async fn compare(args: Args) -> bool {
    let suite = Suite::new(args.suite, args.restarts);
    let directly = async |binary: &'static kube::Binary| {
        let mut cluster = Cluster::direct(suite.needs(), binary, args.keep).await;
        let name = format!("without proxies, {}", binary.abilities().version);
        run(&name, &suite, &mut cluster, false).await
    };
    // What fails with one of the versions alone is not the proxies' doing.
    let directly = async {
        let mut outcomes = Vec::new();
        for binary in kube::all() {
            outcomes.push(directly(binary).await);
        }
        outcomes
            .into_iter()
            .reduce(Outcome::and)
            .unwrap_or_default()
    };
    let through = async {
        let mut cluster = Cluster::proxied(suite.needs(), args.keep).await;
        let outcome = run("through proxies", &suite, &mut cluster, args.restarts).await;
        (outcome, cluster)
    };
    let (direct, (proxied, mut cluster)) = match suite.mostly_waits() {
        true => tokio::join!(directly, through),
        false => (directly.await, through.await),
    };
    let worse = proxied.worse_than(&direct);
    let mut again = None;
    if !worse.is_empty() {
        // Some look only once for what a controller has not done yet.
        println!("worse through proxies: {worse:#?}");
        again = Some(run("again", &suite.only(&worse), &mut cluster, args.restarts).await);
    }
    let comparison = Comparison {
        direct,
        proxied,
        again,
    };
    print!("\n{comparison}\n");
    if !comparison.is_proof() {
        println!("the run without proxies proves nothing");
    }
    comparison.is_proof() && comparison.only_proxied().is_empty()
}

async fn run(name: &str, suite: &Suite, cluster: &mut Cluster, restarts: bool) -> Outcome {
    let started = Instant::now();
    let place = cluster.place();
    let outcome = match restarts {
        true => cluster.restarting_while(suite.run(&place)).await,
        false => suite.run(&place).await,
    };
    let (passed, failed) = (outcome.passed.len(), outcome.failed.len());
    let (seconds, log) = (started.elapsed().as_secs(), outcome.log.display());
    println!("{name}: {passed} passed, {failed} failed, {seconds} s; output: {log}");
    outcome
}
