//! Output to and input from a terminal. Unlike `println!` and `eprintln!` nothing here panics if output cannot be written.

use std::fmt::Display;
use std::io::{self, BufRead, ErrorKind, IsTerminal, Write};

/// Width of a terminal that does not report it.
const USUAL_WIDTH: usize = 80;
/// Longest answer that is read, in bytes.
const ANSWER: u64 = 100;

/// Columns of the terminal; `None`: standard output is no terminal.
pub(super) fn width() -> Option<usize> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let configured = std::env::var("COLUMNS").ok();
    let configured = configured.and_then(|columns| columns.parse().ok());
    let reported = || rustix::termios::tcgetwinsize(&stdout).map(|size| size.ws_col.into());
    let width = configured.or_else(|| reported().ok());
    Some(width.filter(|width| *width > 0).unwrap_or(USUAL_WIDTH))
}

/// Writes to standard output. A closed pipe (`| head`) is no failure.
pub fn say(text: &str) -> Result<(), String> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("cannot write: {error}"))
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error. If that fails, the exit code still reports the failure.
pub fn complain(problem: impl Display) {
    let _ = writeln!(io::stderr(), "{problem}");
}

/// Whether standard input is a terminal.
pub(super) fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// Asks a question; anything except "y" and "yes" means no.
pub(super) fn ask(question: &str) -> Result<bool, String> {
    say(&format!("{question} [y/N] "))?;
    let mut answer = String::new();
    let mut input = io::Read::take(io::stdin().lock(), ANSWER);
    let read = input.read_line(&mut answer);
    if read.map_err(|error| error.to_string())? == 0 {
        say("\n")?;
    }
    let answer = answer.trim().to_ascii_lowercase();
    Ok(matches!(answer.as_str(), "y" | "yes"))
}
