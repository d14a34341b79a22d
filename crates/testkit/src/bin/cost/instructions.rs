//! Instructions of a request in user space. They hardly scatter, so a limit can be kept close.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use testkit::process::Signal;

use super::lab::{Lab, Subject, load};

const CONNECTIONS: usize = 4;
const STREAMS: usize = 4;
/// The difference between two runs is that of their requests alone.
const NUMBERS: [usize; 2] = [500, 2500];
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(clap::Args)]
pub struct Options {
    /// Fail above so many instructions.
    #[arg(long)]
    most: Option<u64>,
    /// Keep callgrind's files here, for callgrind_annotate.
    #[arg(long)]
    keep: Option<std::path::PathBuf>,
}

pub async fn check(program: &Path, options: &Options) -> ExitCode {
    let lab = Lab::new().await;
    let mut totals = Vec::new();
    for number in NUMBERS {
        totals.push(total(&lab, program, number, options).await);
    }
    let requests = (NUMBERS[1] - NUMBERS[0]) as u64;
    let each = totals[1].saturating_sub(totals[0]) / requests;
    println!("{each} instructions a request in user space");
    match options.most {
        Some(most) if each > most => {
            eprintln!("more than {most}: see benches/README.md");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// All instructions of a proxy that answers `number` requests.
async fn total(lab: &Lab, program: &Path, number: usize, options: &Options) -> u64 {
    let dir = options.keep.as_deref().unwrap_or(lab.ground.dir.path());
    let out = dir.join(format!("callgrind.{number}"));
    let file = format!("--callgrind-out-file={}", out.display());
    // One serving thread, or the number of connections of each varies.
    let valgrind = ["taskset", "-c", "1", "valgrind", "--tool=callgrind", &file];
    let Subject::Proxy(mut proxy) = lab.proxy(program, &valgrind).await else {
        unreachable!("a proxy was started")
    };
    load(proxy.addr(), number, CONNECTIONS, STREAMS).await;
    // At once: what the drain does is not measured.
    proxy.process().signal(Signal::Term);
    proxy.process().signal(Signal::Term);
    proxy.process().wait(PATIENCE).await;
    let text = std::fs::read_to_string(&out).expect("callgrind's file; install valgrind");
    let summary = text.lines().find_map(|line| line.strip_prefix("totals: "));
    summary.expect("a total").trim().parse().expect("a number")
}
