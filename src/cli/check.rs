//! `check`: every problem of a configuration file and, with `--live`, of what the file names; with `--pre` of a node that gets
//! the proxy.

use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum;

use super::doctor::finding::{self, Finding, Level};
use super::doctor::{examine, of_file, pre};
use super::{block_on, exit_code, terminal};
use crate::config::{self, Problem};

/// What is printed.
#[derive(Clone, Copy, ValueEnum)]
pub enum FindingsFormat {
    /// Each finding with what to do.
    Text,
    /// Warnings and problems, one short line each.
    Short,
    /// One JSON document.
    Json,
}

/// What is looked at.
#[derive(Clone, Copy)]
pub enum Look {
    File,
    Live,
    Pre,
}

pub fn run(path: &Path, look: Look, output: FindingsFormat) -> ExitCode {
    exit_code(findings(path, look, output))
}

fn findings(path: &Path, look: Look, output: FindingsFormat) -> Result<bool, String> {
    let findings = match look {
        Look::Live => block_on(async { Ok(examine(path).await) })?,
        Look::Pre => block_on(async { Ok(pre::examine(path).await) })?,
        Look::File => of_file(path, config::check(path).err()),
    };
    terminal::say(&match output {
        FindingsFormat::Text => finding::text(&findings),
        FindingsFormat::Short => finding::short(&findings),
        FindingsFormat::Json => finding::json(&findings),
    })?;
    let is_problem = |it: &Finding| it.level == Level::Problem;
    Ok(!findings.iter().any(is_problem))
}

/// `None`: the file at `path` has problems, which were printed.
pub fn problems_printed<T>(path: &Path, result: Result<T, Vec<Problem>>) -> Option<T> {
    let print = |problems| {
        of_file(path, Some(problems))
            .iter()
            .for_each(terminal::complain)
    };
    result.map_err(print).ok()
}
