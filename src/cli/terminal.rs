//! Output to and input from a terminal. Unlike `println!` and `eprintln!` nothing here panics if output cannot be written.

use std::fmt::Display;
use std::io::{self, BufRead, ErrorKind, IsTerminal, Write};

/// Longest answer that is read, in bytes.
const ANSWER: u64 = 100;

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

/// Whether nobody need be asked, or somebody is there. Else says so; `does`: what the command does.
pub(super) fn may_ask(sure: bool, does: &str) -> bool {
    let may = sure || io::stdin().is_terminal();
    if !may {
        complain(format_args!(
            "there is no terminal to ask at: --yes {does} without asking"
        ));
    }
    may
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
