//! A child process that cannot outlive its handle, with its output in a file.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

use super::wait::within;

/// Number of log lines in a panic message.
const TAIL: usize = 40;
/// Of a second, in `/proc`: the same on all of Linux.
const TICKS: u64 = 100;

/// Time to stop all threads of a process on a busy machine.
const STOPPING: Duration = Duration::from_secs(30);

/// For programs in Go, which live for seconds here: they collect garbage less often, at the price of memory.
pub const COLLECT_LESS: (&str, &str) = ("GOGC", "400");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Term,
    Int,
    Kill,
    Hup,
    Stop,
    Cont,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Term => "TERM",
            Self::Int => "INT",
            Self::Kill => "KILL",
            Self::Hup => "HUP",
            Self::Stop => "STOP",
            Self::Cont => "CONT",
        }
    }
}

/// The fields of a `/proc/…/stat` behind the name, which may have blanks in it: the state is the first.
fn behind_name(stat: &str) -> &str {
    let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
    fields.trim_start()
}

pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; standard output and error are appended to `log`. `Err` only if there is no such program.
    pub fn spawn(name: &str, command: &mut Command, log: &Path) -> Result<Self, NotFound> {
        let out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .unwrap_or_else(|error| panic!("log {}: {error}", log.display()));
        let err = out.try_clone().expect("a second handle of the log");
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        match command.spawn() {
            Ok(child) => Ok(Self {
                name: name.to_owned(),
                child,
                log: log.to_owned(),
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(NotFound),
            Err(error) => panic!("{name} does not start: {error}"),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Resident memory in KiB; none once it has ended.
    pub fn memory(&self) -> Option<usize> {
        self.status("VmRSS:")
    }

    /// The most that was resident, in KiB, since [`Process::forget_peak`].
    pub fn peak_memory(&self) -> Option<usize> {
        self.status("VmHWM:")
    }

    pub fn forget_peak(&self) {
        let file = format!("/proc/{}/clear_refs", self.pid());
        std::fs::write(file, "5").expect("the peak is forgotten");
    }

    fn status(&self, field: &str) -> Option<usize> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    }

    /// Processor time of all its threads; none once it has ended.
    pub fn cpu(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        // User and system time.
        let ticks = behind_name(&stat).split_ascii_whitespace();
        let ticks = ticks.skip(11).take(2);
        let ticks: u64 = ticks.map_while(|field| field.parse::<u64>().ok()).sum();
        Some(Duration::from_millis(ticks * (1000 / TICKS)))
    }

    /// How many files it has open, sockets included.
    pub fn files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count)
    }

    /// Sends a signal, unless the process has ended already. After [`Signal::Stop`] nothing more comes from it.
    pub fn signal(&mut self, signal: Signal) {
        // The process ID is not reused before the process has been waited for.
        if self.exited().is_some() {
            return;
        }
        let kill = format!("kill -{} {}", signal.name(), self.pid());
        let status = Command::new("sh").args(["-c", &kill]).status().expect("sh");
        assert!(status.success(), "{kill}: {status}");
        let deadline = Instant::now() + STOPPING;
        while signal == Signal::Stop && !self.is_stopped() {
            assert!(Instant::now() < deadline, "{} does not stop", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether all its threads stand still. On a busy machine some go on for a while.
    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid()));
        let mut threads = threads.into_iter().flatten().flatten();
        threads.all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat"));
            // One that has ended has none.
            stat.map_or(true, |stat| behind_name(&stat).starts_with(['T', 'Z', 'X']))
        })
    }

    /// How it ended, if it has.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("state of a child process")
    }

    /// Waits for its end; panics with the log's tail if there is none.
    pub async fn wait(&mut self, timeout: Duration) -> ExitStatus {
        match within(timeout, async || self.exited()).await {
            Ok(status) => status,
            Err(_) => panic!(
                "{} is still running after {timeout:?}\n{}",
                self.name,
                self.log_tail()
            ),
        }
    }

    /// SIGTERM, and after `patience` SIGKILL; its exit status if the first was enough.
    pub async fn terminate(&mut self, patience: Duration) -> Option<ExitStatus> {
        self.signal(Signal::Term);
        let status = within(patience, async || self.exited()).await.ok();
        self.kill();
        status
    }

    /// SIGKILL, and gone when this returns.
    pub fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The end of its output, with the file's name.
    pub fn log_tail(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines
            .get(lines.len().saturating_sub(TAIL)..)
            .unwrap_or_default()
            .join("\n");
        format!("--- {}\n{tail}\n---", self.log.display())
    }

    /// Waits until `attempt` succeeds; panics with the log's tail when it does not, or when the process ends meanwhile.
    pub async fn ready<T>(
        &mut self,
        timeout: Duration,
        mut attempt: impl AsyncFnMut() -> Result<T, String>,
    ) -> T {
        let result = within(timeout, async || match self.exited() {
            Some(status) => Ok(Err(format!("it ended: {status}"))),
            None => attempt().await.map(Ok),
        })
        .await
        .and_then(|ended_or_ready| ended_or_ready);
        match result {
            Ok(value) => value,
            Err(why) => panic!("{} did not start: {why}\n{}", self.name, self.log_tail()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program is not installed.
#[derive(Clone, Copy, Debug)]
pub struct NotFound;

/// The path of a program of this workspace: next to the running one, or in the directory above that of the tests.
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    let mut dir = own.parent().expect("a directory");
    if dir.ends_with("deps") {
        dir = dir.parent().expect("Cargo's directory");
    }
    dir.join(name)
}

/// Resolves at SIGTERM and SIGINT.
pub async fn told_to_stop() {
    let mut terminate = signal(SignalKind::terminate()).expect("a signal handler");
    let mut interrupt = signal(SignalKind::interrupt()).expect("a signal handler");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
