//! Command line: `run`, `check`, `install`, `uninstall`, `status`, `forget`, `version`. Exit codes: 0 clean stop, 1 failure, 64
//! bad usage or configuration.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use kube_interop_proxy::cli::arguments::{Arguments, Command, LogFormat, VERSION};
use kube_interop_proxy::cli::check::problems_printed;
use kube_interop_proxy::cli::{self, USAGE, exit_code, terminal};
use kube_interop_proxy::config::{self, LoadedConfig};
use kube_interop_proxy::log_queue::LogQueue;
use kube_interop_proxy::reload::{LogFilter, ReloadInputs};
use kube_interop_proxy::{app, tls};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, reload};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tls::store::install_provider();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help or the version was requested: no error. A closed stdout is ignored.
            let _ = error.print();
            return match error.use_stderr() {
                true => ExitCode::from(USAGE),
                false => ExitCode::SUCCESS,
            };
        }
    };
    match arguments.command {
        Command::Run { config, log_format } => {
            run(&config, log_format).unwrap_or(ExitCode::from(USAGE))
        }
        Command::Check(arguments) => exit_code(cli::check::run(&arguments)),
        Command::Status(arguments) => exit_code(cli::status::run(&arguments)),
        Command::Forget(arguments) => cli::forget::run(&arguments),
        Command::Install(arguments) => cli::install::install(&arguments),
        Command::Uninstall(arguments) => cli::install::uninstall(&arguments),
        Command::Version => {
            exit_code(terminal::say(&format!("kube-interop-proxy {VERSION}\n")).map(|()| true))
        }
    }
}

/// `None`: bad usage or configuration, which was printed.
fn run(path: &Path, log_format: LogFormat) -> Option<ExitCode> {
    // RUST_LOG counts, not the configuration.
    let wanted = std::env::var("RUST_LOG").ok().map(EnvFilter::try_new);
    let wanted = match wanted.transpose() {
        Ok(wanted) => wanted,
        Err(error) => {
            terminal::complain(format_args!("RUST_LOG: {error}"));
            return None;
        }
    };
    let loaded = problems_printed(path, config::load(path))?;
    let lines = match LogQueue::start(std::io::stderr()) {
        Ok(lines) => lines,
        Err(error) => return Some(exit_code(Err(format!("cannot start a thread: {error}")))),
    };
    let file_decides = wanted.is_none();
    let filter = wanted.unwrap_or_else(|| EnvFilter::new(&loaded.config.logging.filter));
    let log_filter = start_logging(log_format, filter, lines.clone());
    let served = serve(path, loaded, Some(log_filter).filter(|_| file_decides));
    if let Err(error) = &served {
        tracing::error!(error = format!("{error:#}"), "failed");
    }
    lines.flush();
    Some(exit_code(Ok(served.is_ok())))
}

/// Returns what replaces the filter.
fn start_logging(format: LogFormat, filter: EnvFilter, lines: LogQueue) -> LogFilter {
    // The default hook writes to stderr itself, and so would wait for its reader.
    let queue = lines.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let what = panic.to_string().replace('\n', " ");
        queue.panicked(std::thread::current().name(), &what);
    }));
    // It would print internal errors to stderr and panic when the log's reader is gone or the disk is full.
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(move || lines.clone())
        .log_internal_errors(false);
    let layer = match format {
        LogFormat::Text => layer.with_ansi(false).boxed(),
        LogFormat::Json => layer.json().boxed(),
    };
    let (filter, handle) = reload::Layer::new(filter);
    tracing_subscriber::registry()
        .with(layer)
        .with(filter)
        .init();
    // It fails only once the subscriber is gone, and that stays for as long as the process.
    Box::new(move |filter| drop(handle.reload(EnvFilter::new(filter))))
}

fn serve(path: &Path, loaded: LoadedConfig, log_filter: Option<LogFilter>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("control")
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let result = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        // Without a handler it would end the process. The file is read again without being asked.
        let _hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        let config = loaded.config.clone();
        let reload = ReloadInputs {
            path: path.to_owned(),
            loaded,
            log_filter,
        };
        tokio::select! {
            () = app::room(&config) => {}
            () = either(&mut terminate, &mut interrupt) => return Ok(()),
        }
        let bound = app::build(config, Some(reload))?;
        either(&mut terminate, &mut interrupt).await;
        tokio::select! {
            () = bound.stop() => Ok(()),
            () = either(&mut terminate, &mut interrupt) => anyhow::bail!("second signal, ending at once"),
        }
    });
    // The remaining tasks had their time to stop.
    runtime.shutdown_background();
    result
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
