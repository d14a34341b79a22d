//! Output for people. Uses colours only on a terminal that supports them.

use std::fmt::Display;
use std::io::{IsTerminal, Write};

#[derive(Clone, Copy)]
pub struct Terminal {
    colours: bool,
}

/// Columns.
const WIDTH: usize = 100;

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const CYAN: &str = "36";

impl Terminal {
    pub fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            colours: wanted && std::io::stdout().is_terminal(),
        }
    }

    pub fn plain(&self, text: impl Display) {
        // Whoever reads may have gone (`| head`); the tour still has to clean up.
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    pub fn title(&self, text: &str) {
        self.plain(self.paint(BOLD, text));
    }

    /// A step's heading, ruled to its right.
    pub fn heading(&self, number: usize, text: &str) {
        let text = format!("{number}. {text} ");
        self.plain(format!(
            "\n{}",
            self.paint(BOLD, format!("{text:-<WIDTH$}"))
        ));
    }

    /// Explanations, as wide as they were written.
    pub fn prose(&self, text: &str) {
        for line in text.lines() {
            self.plain(line.trim());
        }
    }

    /// A command line as it is run.
    pub fn command(&self, line: &str) {
        self.plain(format!(
            "\n  {} {}",
            self.paint(DIM, "$"),
            self.paint(CYAN, line)
        ));
    }

    /// Something that came back, wrapped where it is too long.
    pub fn answer(&self, text: impl Display) {
        let text = text.to_string();
        let body = text.trim_start();
        let mut line = " ".repeat(4 + text.len() - body.len());
        let start = line.len();
        for word in body.split(' ') {
            if line.len() > start && line.len() + word.len() >= WIDTH {
                self.plain(&line);
                line = " ".repeat(start + 2);
            } else if line.len() > start {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.plain(line);
    }

    /// Something that happens beside the commands.
    pub fn aside(&self, text: impl Display) {
        self.plain(format!("  {}", self.paint(DIM, format!("({text})"))));
    }

    pub fn verdict(&self, ok: bool, text: &str) {
        self.plain(format!("  {}  {text}", self.mark(ok)));
    }

    pub fn mark(&self, ok: bool) -> String {
        if ok {
            self.paint(GREEN, "ok")
        } else {
            self.paint(RED, "NO")
        }
    }

    fn paint(&self, colour: &str, text: impl Display) -> String {
        if self.colours {
            format!("\x1b[{colour}m{text}\x1b[0m")
        } else {
            text.to_string()
        }
    }
}
