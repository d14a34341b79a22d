//! The apiserver double as a process of its own, for the demo and for trying things by hand.
//!
//! `apiserver-double --listen 127.0.0.1:7443 --pki DIR --preset v1.20`; ends on SIGTERM.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use testkit::double::{Double, DoubleOptions, Kubernetes, Phase};

#[derive(Parser)]
struct Arguments {
    /// Where to listen; port 0 takes a free one.
    #[arg(long)]
    listen: SocketAddr,
    /// Directory of apiserver.crt, apiserver.key, ca.crt, front-proxy-ca.crt and tokens.csv; made if it is not there.
    #[arg(long)]
    pki: PathBuf,
    /// Which Kubernetes to be.
    #[arg(long, value_enum, default_value_t)]
    preset: Kubernetes,
    /// A group not to serve.
    #[arg(long = "without-group", value_name = "GROUP")]
    without_groups: Vec<String>,
    /// How many seconds to stay not ready.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    not_ready_for: f64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if !arguments.pki.exists() {
        testkit::pki::Pki::with_ips(&arguments.pki, &[arguments.listen.ip()]);
    }
    let without = arguments.without_groups.iter();
    let mut options = DoubleOptions::new(
        &arguments.pki,
        without.fold(arguments.preset.preset(), |preset, group| {
            preset.without_group(group)
        }),
    );
    options.listen = Some(arguments.listen);
    let wait = Duration::try_from_secs_f64(arguments.not_ready_for)?;
    if !wait.is_zero() {
        options.phase = Phase::Bootstrapping;
    }
    // Before anybody is told to connect, so that no signal is missed.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let double = Double::start(options).await;
    println!("listening on {}", double.addr());
    let ready = async {
        tokio::time::sleep(wait).await;
        double.set_ready(true);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = ready => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}
