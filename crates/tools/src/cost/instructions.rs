//! Instructions of a request in user space. They hardly scatter, so a limit can be kept close.

use std::path::Path;
use std::process::ExitCode;

use testkit::double::{Double, v1_20};
use testkit::proxy::Proxy;

use super::lab::{Lab, OBJECT, PROCESSOR, Plan, Subject, end};
use super::load::Load;
use super::origin::REROUTED;
use super::requests::until_rerouted;

const CONNECTIONS: usize = 4;
const STREAMS: usize = 4;
/// The difference between two runs is that of their requests alone.
const NUMBERS: [usize; 2] = [500, 2500];

#[derive(clap::Args)]
pub struct Options {
    /// Fail above so many instructions.
    #[arg(long)]
    most: Option<u64>,
    /// Of the first of two proxies: only the second one's server has the resource.
    #[arg(long)]
    rerouted: bool,
    /// Keep callgrind's files here, for callgrind_annotate.
    #[arg(long)]
    keep: Option<std::path::PathBuf>,
}

/// What answers the requests.
struct Served {
    lab: Lab,
    path: &'static str,
    /// The proxy that they are rerouted to, and its server.
    peer: Option<(Subject, Double)>,
}

pub async fn check(plan: &Plan, options: &Options) -> ExitCode {
    let served = match options.rerouted {
        true => Served::by_a_peer(plan).await,
        false => Served {
            lab: Lab::new().await,
            path: OBJECT,
            peer: None,
        },
    };
    let own = served.lab.ground.dir.path();
    let dir = options.keep.as_deref().unwrap_or(own);
    let mut totals = Vec::new();
    for number in NUMBERS {
        totals.push(total(&served, plan, number, dir).await);
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

impl Served {
    async fn by_a_peer(plan: &Plan) -> Self {
        let lab = Lab::of(v1_20().without_group("autoscaling")).await;
        let server = lab.ground.double(v1_20()).await;
        let options = lab.proxy_options(plan, server.addr()).server_id("second");
        let peer = Subject::proxy(Proxy::start(options).await);
        Self {
            lab,
            path: REROUTED,
            peer: Some((peer, server)),
        }
    }
}

/// All instructions of a proxy that answers `number` requests.
async fn total(served: &Served, plan: &Plan, number: usize, dir: &Path) -> u64 {
    let Served { lab, path, peer } = served;
    let out = dir.join(format!("callgrind.{number}"));
    let file = format!("--callgrind-out-file={}", out.display());
    // One serving thread, or the number of connections of each varies.
    let valgrind = [
        "taskset",
        "-c",
        PROCESSOR,
        "valgrind",
        "--tool=callgrind",
        &file,
    ];
    let options = lab.proxy_options(plan, lab.double.addr());
    let options = options.run_by(valgrind.map(str::to_owned).to_vec());
    let mut proxy = Proxy::start(options).await;
    if peer.is_some() {
        until_rerouted(lab, proxy.addr()).await;
    }
    Load::new(proxy.addr(), number, CONNECTIONS, STREAMS)
        .path(path)
        .run()
        .await;
    // What the drain does is not measured.
    end(proxy.process()).await;
    let text = std::fs::read_to_string(&out).expect("callgrind's file; install valgrind");
    let summary = text.lines().find_map(|line| line.strip_prefix("totals: "));
    summary.expect("a total").trim().parse().expect("a number")
}
