//! Command line: `run`, `check`, `status`, `forget`, `version`. Exit codes: 0 clean stop, 1 failure, 64 bad usage or
//! configuration.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use kube_interop_proxy::cli::arguments::{Arguments, Command, LogFormat};
use kube_interop_proxy::cli::doctor;
use kube_interop_proxy::cli::doctor::finding::{Level, summary};
use kube_interop_proxy::cli::{self, Ending, terminal};
use kube_interop_proxy::config::{self, Config, LoadedConfig, Problem};
use kube_interop_proxy::log_queue::LogQueue;
use kube_interop_proxy::reload::{LogFilter, ReloadInputs};
use kube_interop_proxy::server::rotate;
use kube_interop_proxy::tls::serving::ServingTls;
use kube_interop_proxy::{app, tls};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::{EnvFilter, reload};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Bad usage or configuration (EX_USAGE of sysexits.h).
const USAGE: u8 = 64;
/// A failure that the command line did not cause.
const FAILURE: u8 = 1;

fn main() -> ExitCode {
    tls::store::install_provider();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help was requested: no error. A closed stdout is ignored.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(USAGE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match arguments.command {
        Command::Run { config, log_format } => run(&config, log_format),
        Command::Check { config, live: true } => examine(&config),
        Command::Check {
            config,
            live: false,
        } => check(&config),
        Command::Status {
            admin,
            peers: Some(peers),
            timeout,
            ..
        } => code(cli::status::wait::run(&admin, peers, timeout)),
        Command::Status { admin, output, .. } => code(cli::status::run(&admin, output)),
        Command::Forget {
            server_id,
            config,
            yes,
        } => match problems_printed(config::load(&config)) {
            Ok(config) => code(cli::forget::run(&server_id, &config, yes)),
            Err(()) => ExitCode::from(USAGE),
        },
        Command::Version => {
            let text = concat!(
                "kube-interop-proxy ",
                env!("CARGO_PKG_VERSION"),
                " (commit ",
                env!("KUBE_INTEROP_PROXY_COMMIT"),
                ")\n"
            );
            said(text, ExitCode::SUCCESS)
        }
    }
}

fn code(ending: Ending) -> ExitCode {
    match ending {
        Ending::Good => ExitCode::SUCCESS,
        Ending::Bad => ExitCode::from(FAILURE),
        Ending::Usage => ExitCode::from(USAGE),
    }
}

fn check(path: &Path) -> ExitCode {
    let config = problems_printed(config::check(path));
    match config.and_then(|config| serving_tls(&config)) {
        Ok(tls) => {
            let warning = tls.warning().map(|warning| format!("warning: {warning}\n"));
            let good = format!("{}: no problems\n", path.display());
            said(&(warning.unwrap_or_default() + &good), ExitCode::SUCCESS)
        }
        Err(()) => ExitCode::from(FAILURE),
    }
}

/// Checks everything that the file names, and prints the findings.
fn examine(path: &Path) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let findings = match runtime {
        Ok(runtime) => {
            let findings = runtime.block_on(doctor::examine(path));
            // Drops connections that are not needed any more.
            runtime.shutdown_background();
            findings
        }
        Err(error) => {
            terminal::complain(format_args!("cannot start a runtime: {error}"));
            return ExitCode::from(FAILURE);
        }
    };
    let lines = findings.iter().map(|finding| format!("{finding}\n"));
    let text = lines.collect::<String>() + &summary(&findings) + "\n";
    match findings.iter().any(|it| it.level == Level::Problem) {
        true => said(&text, ExitCode::from(FAILURE)),
        false => said(&text, ExitCode::SUCCESS),
    }
}

/// Prints text. Returns `code`, or a failure if stdout cannot be written.
fn said(text: &str, code: ExitCode) -> ExitCode {
    match terminal::say(text) {
        Ok(()) => code,
        Err(why) => {
            terminal::complain(why);
            ExitCode::from(FAILURE)
        }
    }
}

/// Prints the problems, if any.
fn problems_printed<T>(result: Result<T, Vec<Problem>>) -> Result<T, ()> {
    result.map_err(|problems| {
        for problem in &problems {
            terminal::complain(problem);
        }
    })
}

/// What the TLS port would use. Prints why it cannot be used.
fn serving_tls(config: &Config) -> Result<ServingTls, ()> {
    rotate::serving_tls(config).map_err(terminal::complain)
}

fn run(path: &Path, log_format: LogFormat) -> ExitCode {
    let Ok(wanted) = wanted_filter() else {
        return ExitCode::from(USAGE);
    };
    let loaded = problems_printed(config::load_to_run(path));
    let usable = |loaded: LoadedConfig| serving_tls(&loaded.config).map(|_| loaded);
    let Ok(loaded) = loaded.and_then(usable) else {
        return ExitCode::from(USAGE);
    };
    let file_decides = wanted.is_none();
    let filter = wanted.unwrap_or_else(|| EnvFilter::new(&loaded.config.logging.filter));
    let lines = match LogQueue::start(std::io::stderr()) {
        Ok(lines) => lines,
        Err(error) => {
            terminal::complain(format_args!("cannot start a thread: {error}"));
            return ExitCode::from(FAILURE);
        }
    };
    let log_filter = start_logging(log_format, filter, lines.clone());
    let code = match serve(path, loaded, Some(log_filter).filter(|_| file_decides)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "failed");
            ExitCode::from(FAILURE)
        }
    };
    lines.flush();
    code
}

/// What RUST_LOG says, if it is set: it counts, not the configuration. `Err`: it cannot be understood.
fn wanted_filter() -> Result<Option<EnvFilter>, ()> {
    let Ok(wanted) = std::env::var("RUST_LOG") else {
        return Ok(None);
    };
    match EnvFilter::try_new(wanted) {
        Ok(filter) => Ok(Some(filter)),
        Err(error) => {
            terminal::complain(format_args!("RUST_LOG: {error}"));
            Err(())
        }
    }
}

/// Returns what replaces the filter.
fn start_logging(format: LogFormat, filter: EnvFilter, lines: LogQueue) -> LogFilter {
    // The default hook writes to stderr itself, and so would wait for its reader.
    let queue = lines.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let what = panic.to_string().replace('\n', " ");
        queue.panicked(std::thread::current().name(), &what);
    }));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || lines.clone())
        // Otherwise it would print to stderr and panic when the log's reader is gone or the disk is full.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => {
            let logs = logs.with_ansi(false).with_filter_reloading();
            let handle = logs.reload_handle();
            logs.init();
            replacing(handle)
        }
        LogFormat::Json => {
            let logs = logs.json().with_filter_reloading();
            let handle = logs.reload_handle();
            logs.init();
            replacing(handle)
        }
    }
}

fn replacing<S: 'static>(handle: reload::Handle<EnvFilter, S>) -> LogFilter {
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
        // Before anything else that takes time: without a handler SIGHUP would end the process.
        let hangup = signal(SignalKind::hangup()).context("cannot listen for SIGHUP")?;
        let config = loaded.config.clone();
        let reload = ReloadInputs {
            path: path.to_owned(),
            loaded,
            hangup,
            log_filter,
        };
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

async fn either(
    terminate: &mut tokio::signal::unix::Signal,
    interrupt: &mut tokio::signal::unix::Signal,
) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
