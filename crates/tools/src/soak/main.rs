//! Random faults in a mixed cluster of real parts, with a ledger of what every client was told.
//!
//! Three members of etcd, three kube-apiservers v1.20.2 that differ, a proxy beside each, and a balancer before the
//! proxies. Readers, writers and informers of several users repeat requests as client-go does, while parts are killed,
//! stopped and frozen, connections cut, delayed and silenced, certificates replaced, groups switched on and off, and
//! CRDs created and deleted. At the end everything is compared with etcd's own history. `tests/soak.sh` builds what it
//! needs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "test support: a failure is a panic with a message"
)]

mod book;
mod clients;
mod clock;
mod exchange;
mod faults;
mod informed;
mod kinds;
mod memory;
mod plan;
mod prepare;
mod random;
mod reference;
mod rules;
mod run;
mod table;
mod watched;
mod world;
mod writes;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::run::Course;

#[derive(Parser)]
struct Args {
    /// How long faults are injected.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Repeats the faults of another run; without it they are others each time.
    #[arg(long)]
    seed: Option<u64>,
    /// In place of faults, one apiserver after the other is upgraded through the versions that KUBE_INTEROP_APISERVERS names,
    /// and back.
    #[arg(long)]
    upgrades: bool,
    /// Keeps configuration and logs also if nothing is wrong.
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(now);
    let course = match args.upgrades {
        true if testkit::kube::several().is_empty() => {
            eprintln!("soak: {} names no versions", testkit::kube::VARIABLE);
            return ExitCode::FAILURE;
        }
        true => Course::Upgrades,
        false => Course::Faults(Duration::from_secs(args.seconds)),
    };
    println!("soak: {course}, --seed {seed}");
    testkit::install_crypto_provider();
    let run = run::run(seed, course, args.keep);
    let clean = tokio::select! {
        clean = run => clean,
        // What was started ends with its handles.
        () = testkit::process::told_to_stop() => false,
    };
    match clean {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
