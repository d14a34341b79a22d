//! The terminal that a command was called from, if it was one. Nothing here panics where nobody takes what is said, as
//! `println!` and `eprintln!` do.

use std::fmt::Display;
use std::io::{self, BufRead, ErrorKind, IsTerminal, Write};

/// Where a terminal does not say how wide it is.
const USUAL_WIDTH: usize = 80;
/// Longest answer that is read.
const ANSWER: u64 = 100;

/// Columns of the terminal that output goes to; none: it goes elsewhere.
pub(super) fn width() -> Option<usize> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let said = std::env::var("COLUMNS").ok();
    let said = said.and_then(|columns| columns.parse().ok());
    let asked = || rustix::termios::tcgetwinsize(&stdout).map(|size| size.ws_col.into());
    let width = said.or_else(|| asked().ok());
    Some(width.filter(|width| *width > 0).unwrap_or(USUAL_WIDTH))
}

/// Writes to standard output. Whoever reads may have gone (`| head`), which is no failure.
pub fn say(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes a line to standard error. If that cannot be done, there is nobody left to tell: the exit code says it.
pub fn complain(problem: impl Display) {
    let _ = writeln!(io::stderr(), "{problem}");
}

/// Whether somebody can be asked.
pub(super) fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// Asks; anything but "y" and "yes" is a no.
pub(super) fn ask(question: &str) -> io::Result<bool> {
    say(&format!("{question} [y/N] "))?;
    let mut answer = String::new();
    let mut input = io::Read::take(io::stdin().lock(), ANSWER);
    if input.read_line(&mut answer)? == 0 {
        say("\n")?;
    }
    let answer = answer.trim().to_ascii_lowercase();
    Ok(matches!(answer.as_str(), "y" | "yes"))
}
