//! Random faults in a mixed cluster of real parts, with a ledger of what every client was told.
//!
//! Three members of etcd, three kube-apiservers that differ, a proxy beside each, and a balancer before the proxies.
//! Readers, writers and informers of several users repeat requests as client-go does, controllers collect and kubectl runs,
//! while parts are killed, stopped, frozen and replaced, proxies uninstalled, connections cut, delayed and silenced,
//! certificates replaced, groups switched on and off, and CRDs created and deleted. At the end everything is compared with
//! etcd's own history. Or the apiservers are upgraded, and what the same clients see is also counted without a proxy and with
//! HAProxy in its place. `tests/soak.sh` builds what it needs.
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
mod front;
#[path = "../haproxy.rs"]
mod haproxy;
mod informed;
mod kinds;
mod memory;
mod partly;
mod picture;
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

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use testkit::kube;

use crate::front::{Front, NativeProxy};
use crate::run::{Course, Run};

#[derive(Parser)]
struct Args {
    /// How long faults are injected.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Repeats the faults of another run; without it they are others each time.
    #[arg(long)]
    seed: Option<u64>,
    /// In place of faults, one apiserver after the other is upgraded through the versions that KUBE_INTEROP_APISERVERS names,
    /// and back: without a proxy, with HAProxy in its place, and with it.
    #[arg(long)]
    upgrades: bool,
    /// What is in front of the apiservers that are upgraded, one after the other.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "nothing,haproxy,proxy",
        requires = "upgrades"
    )]
    front: Vec<Front>,
    /// KEY=VALUE in the configuration of each proxy, such as versionAwareness.default=Newest.
    #[arg(long, value_parser = setting)]
    set: Vec<(String, String)>,
    /// The apiservers' own mixed version proxy, in versions that have one.
    #[arg(long, default_value = "off")]
    native: NativeProxy,
    /// Draws memory, open files and tasks of the proxies, as an SVG.
    #[arg(long, conflicts_with = "upgrades")]
    picture: Option<PathBuf>,
    /// Keeps configuration and logs also if nothing is wrong.
    #[arg(long)]
    keep: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(now);
    let (course, fronts) = match args.upgrades {
        true => {
            let versions = kube::several().into_iter();
            let minors: Vec<_> = versions.map(|it| it.abilities().minor()).collect();
            if minors.is_empty() {
                eprintln!("soak: {} does not name several versions", kube::VARIABLE);
                return ExitCode::FAILURE;
            }
            (Course::Upgrades(minors), args.front)
        }
        false => (
            Course::Faults(Duration::from_secs(args.seconds)),
            vec![Front::Proxy],
        ),
    };
    let run = Run {
        seed,
        settings: args.set,
        native: args.native,
        picture: args.picture,
        keep: args.keep,
    };
    println!("soak: {course}, --seed {seed}");
    testkit::install_crypto_provider();
    let clean = tokio::select! {
        clean = all(&course, &fronts, &run) => clean,
        // What was started ends with its handles.
        () = testkit::process::told_to_stop() => false,
    };
    match clean {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// One run after the other. Whether nothing was wrong.
async fn all(course: &Course, fronts: &[Front], run: &Run) -> bool {
    let (mut rows, mut is_clean) = (Vec::new(), true);
    for front in fronts {
        println!("\nin front of each apiserver: {front}");
        let findings = run.of(course, *front).await;
        is_clean &= findings.is_clean;
        rows.push((front, findings.totals));
    }
    if let (Course::Upgrades(_), [(_, totals), ..]) = (course, &rows[..]) {
        let columns = totals.each_ref().map(|(name, _)| *name).join(" | ");
        println!(
            "\n| in front | {columns} |\n{}",
            "|---".repeat(totals.len() + 1) + "|"
        );
        for (front, totals) in &rows {
            let counts = totals
                .each_ref()
                .map(|(_, count)| count.as_str())
                .join(" | ");
            println!("| {front} | {counts} |");
        }
    }
    is_clean
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("not KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
