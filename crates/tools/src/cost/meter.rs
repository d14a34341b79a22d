//! How much of the processor a process takes: cycles by perf where the machine counts them, otherwise its time in
//! `/proc`, in steps of 10 ms.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use testkit::process::Process;

/// Of a process, user and kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meter {
    Cycles,
    Time,
}

impl Meter {
    /// Cycles, if perf can count them here.
    pub fn new() -> Self {
        let perf = Command::new("perf")
            .args(["stat", "-x,", "-e", "cycles", "true"])
            .output();
        let counted =
            perf.is_ok_and(|perf| count(&String::from_utf8_lossy(&perf.stderr)).is_some());
        if counted { Self::Cycles } else { Self::Time }
    }

    pub fn unit(self) -> &'static str {
        match self {
            Self::Cycles => "thousand cycles",
            Self::Time => "µs of processor time",
        }
    }

    /// What `process` takes during `work`, in [`Meter::unit`], and the result of `work`.
    pub async fn measure<T>(self, process: &Process, work: impl Future<Output = T>) -> (f64, T) {
        match self {
            Self::Cycles => {
                let perf = Perf::attach(process.pid());
                let done = work.await;
                (perf.detach() / 1e3, done)
            }
            Self::Time => {
                let before = process.cpu().expect("it runs");
                let done = work.await;
                let used = process.cpu().expect("it runs") - before;
                (used.as_secs_f64() * 1e6, done)
            }
        }
    }
}

/// perf's line of one event.
fn count(text: &str) -> Option<f64> {
    text.lines()
        .find_map(|line| line.split(',').next()?.parse().ok())
}

/// Counts from when it is attached.
struct Perf {
    perf: Child,
    control: File,
    dir: tempfile::TempDir,
}

impl Perf {
    fn attach(pid: u32) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let fifo = |name: &str| {
            let path = dir.path().join(name);
            let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo");
            assert!(made.success(), "mkfifo");
            path
        };
        let (control, ack) = (fifo("control"), fifo("ack"));
        let perf = Command::new("perf")
            .args(["stat", "-x,", "-e", "cycles", "-D", "-1", "-o"])
            .arg(dir.path().join("counts"))
            .arg("--control")
            .arg(format!("fifo:{},{}", control.display(), ack.display()))
            .args(["-p", &pid.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("perf");
        // Opening waits for perf, which has attached when it reads.
        let mut control = File::options()
            .write(true)
            .open(control)
            .expect("perf's control");
        order(&mut control, "enable", &ack);
        Self { perf, control, dir }
    }

    fn detach(mut self) -> f64 {
        order(&mut self.control, "disable", &self.dir.path().join("ack"));
        let stop = format!("kill -INT {}", self.perf.id());
        Command::new("sh").args(["-c", &stop]).status().expect("sh");
        self.perf.wait().expect("perf ends");
        let text = std::fs::read_to_string(self.dir.path().join("counts")).expect("perf's counts");
        count(&text).unwrap_or_else(|| panic!("perf counted nothing: {text}"))
    }
}

fn order(control: &mut File, what: &str, ack: &Path) {
    writeln!(control, "{what}").expect("perf takes orders");
    let mut done = [0; 4];
    // "ack\n"
    File::open(ack)
        .and_then(|mut ack| ack.read_exact(&mut done))
        .expect("perf obeys");
}
