//! Runs the program like an operator: to its end, in a pipe or at a terminal.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use testkit::cluster::binary;
use testkit::wait::{eventually, within};

/// No command may take as long: they wait 5 s for an answer, `forget` for two of them.
pub const SOON: Duration = Duration::from_secs(15);

/// How a command ended.
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// One line on standard error, and nothing on standard output.
    #[track_caller]
    pub fn one_line(&self) -> &str {
        assert_eq!(self.stdout, "");
        let line = self.stderr.trim_end_matches('\n');
        assert!(!line.is_empty() && !line.contains('\n'), "{line}");
        line
    }
}

/// Runs it in pipes, without blocking the test's own servers.
pub async fn run(arguments: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A command at a terminal of its own, which `script` (bsdutils) makes; ended with its handle.
pub struct AtTerminal {
    script: Child,
    keyboard: ChildStdin,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl AtTerminal {
    /// `columns`: how wide the terminal is.
    pub fn start(arguments: &[&str], columns: u16) -> Self {
        let quoted = arguments.iter().map(|argument| {
            assert!(!argument.contains('\''), "{argument}");
            format!(" '{argument}'")
        });
        let quoted: String = quoted.collect();
        let line = format!("stty cols {columns} && '{}'{quoted}", binary().display());
        let mut script = Command::new("script")
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env_remove("COLUMNS")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script, of the Debian package bsdutils");
        let keyboard = script.stdin.take().unwrap();
        let mut output = script.stdout.take().unwrap();
        let screen = Arc::new(Mutex::new(Vec::new()));
        let seen = screen.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                seen.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Self {
            script,
            keyboard,
            screen,
        }
    }

    /// Everything on it so far; a terminal's line ends are made the usual ones.
    pub fn screen(&self) -> String {
        let seen = self.screen.lock().unwrap().clone();
        String::from_utf8_lossy(&seen).replace("\r\n", "\n")
    }

    pub async fn until_it_asks(&self) {
        let asks = async || match self.screen().contains("[y/N]") {
            true => Ok(()),
            false => Err(self.screen()),
        };
        eventually("it asks", SOON, asks).await;
    }

    pub fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    /// Its exit code and everything that was on the screen.
    pub async fn end(mut self) -> (Option<i32>, String) {
        let ended = within(SOON, async || self.script.try_wait().unwrap()).await;
        let code = ended.unwrap_or_else(|why| panic!("{why}: {}", self.screen()));
        let last = async || Arc::strong_count(&self.screen) == 1;
        eventually("everything was read", SOON, last).await;
        (code.code(), self.screen())
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        // An error says that it has ended already.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}
