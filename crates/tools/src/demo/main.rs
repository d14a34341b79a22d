//! The guided tour: two kube-apiservers that serve different things, a proxy beside each, and real `curl` commands.
//!
//! Every command is printed as it is run, every answer is checked, and a table at the end says what was expected and
//! what was seen; the exit code is 0 only if all of it fits. Nothing is left behind. Run it with `tests/demo.sh`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a program for people to watch: a failure is a panic with a message"
)]

mod shell;
mod stage;
mod terminal;
mod tour;

use std::process::ExitCode;

use clap::Parser;
use testkit::double::Kubernetes;
use tokio::signal::unix::{Signal, SignalKind, signal};

use stage::{Cast, Stage};
use terminal::Terminal;
use tour::Tour;

/// Guided tour of kube-interop-proxy: starts a small cluster, asks it things, checks the answers, cleans up.
#[derive(Parser)]
#[command(name = "demo")]
struct Arguments {
    /// Two real kube-apiservers instead of doubles: v1.20.2, which tests/build-kubernetes.sh builds, or those that
    /// KUBE_INTEROP_APISERVERS names.
    #[arg(long, conflicts_with = "kubernetes")]
    real: bool,
    /// Which Kubernetes the doubles imitate.
    #[arg(long, value_enum, default_value_t)]
    kubernetes: Kubernetes,
    /// Leave everything running after the tour, until Ctrl-C.
    #[arg(long)]
    stay: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut signals = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ]
    .map(|kind| signal(kind).expect("signals"));
    let [interrupt, terminate, hangup] = &mut signals;
    // Whichever way it ends, what was started ends with it: all of it hangs on the future that is dropped here.
    let tour = tokio::select! {
        tour = take(&arguments) => tour,
        () = any(interrupt, terminate, hangup) => {
            Terminal::new().plain("\ninterrupted; everything that was started is being ended");
            return ExitCode::from(130);
        }
    };
    let fits = tour.summary();
    if arguments.stay {
        tour.tell_where_everything_is();
        any(interrupt, terminate, hangup).await;
        Terminal::new().plain("\neverything that was started is being ended");
    }
    if fits {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Takes the tour; what it was given on is still up when this returns.
async fn take(arguments: &Arguments) -> Tour {
    let terminal = Terminal::new();
    terminal.title("kube-interop-proxy: a guided tour");
    let cast = match (arguments.real, arguments.kubernetes) {
        (true, _) => Cast::Real,
        (false, kubernetes) => Cast::Doubles(kubernetes.preset()),
    };
    let stage = Stage::build(cast, &terminal).await;
    stage.introduce(&terminal);
    let mut tour = Tour::new(terminal, stage);
    tour.go().await;
    tour
}

async fn any(interrupt: &mut Signal, terminate: &mut Signal, hangup: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}
