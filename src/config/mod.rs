//! The validated configuration.
//!
//! A [`Config`] is always valid: [`load`] and [`parse`] return either one, or every [`Problem`] of the file. Its types
//! stand in `sections`, with the keys and their defaults.
//!
//! From text to `Config`: `file` (YAML to a `tree`), `section` (the keys of any mapping), `sections` (every key),
//! `values` and `headers` (single values), `validate` (the whole, and rules across keys), `files`
//! and [`crate::x509::pem`] (certificates and keys). `facts` collects values and problems, `file` finds their lines.
//! [`settings`] is what is read again while the proxy runs, [`contents`] when.

pub mod contents;
pub mod duration;
pub mod settings;

mod facts;
mod file;
mod files;
mod headers;
mod problem;
mod section;
mod sections;
mod tree;
mod validate;
mod values;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::x509::pem::PemError;
pub use facts::EffectiveValues;
pub(crate) use files::SHARED_AUTHORITY;
pub(crate) use headers::key as names_key;
pub use problem::{Problem, ProblemKind};
pub use sections::*;
pub(crate) use tree::{escaped, joined, one_line, shortened};
pub(crate) use values::{is_host_and_port, is_subdomain, suite_named};

/// A configuration with what is needed to notice that its file has changed.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedConfig {
    pub config: Config,
    pub values: EffectiveValues,
    /// The file's contents.
    pub text: String,
}

/// Reads a configuration file and checks everything in it, including the files that it names.
///
/// Relative paths start from the directory of the file. Problems are in the order of the file.
pub fn load(path: &Path) -> Result<LoadedConfig, Vec<Problem>> {
    validate::config(path, read(path)?, files::check)
}

/// Like [`load`], but an expired or not yet valid certificate of the proxy is a problem, too.
pub fn check(path: &Path) -> Result<Config, Vec<Problem>> {
    check_text(path, read(path)?)
}

/// Like [`check`], for what the file at `path` is to contain.
pub fn check_text(path: &Path, text: String) -> Result<Config, Vec<Problem>> {
    validate::config(path, text, files::check_all).map(|loaded| loaded.config)
}

/// Like [`load`], but does not read the files that the configuration names.
pub fn load_without_files(path: &Path) -> Result<Config, Vec<Problem>> {
    parse_at(path, read(path)?).map(|loaded| loaded.config)
}

/// Reads a configuration from text; does not read the files that it names.
pub fn parse(text: &str) -> Result<Config, Vec<Problem>> {
    parse_at(Path::new(""), text.to_owned()).map(|loaded| loaded.config)
}

/// Parses the contents of the file at `path`.
pub(crate) fn parse_at(path: &Path, text: String) -> Result<LoadedConfig, Vec<Problem>> {
    validate::config(path, text, |_| {})
}

/// The contents of a configuration file.
fn read(path: &Path) -> Result<String, Vec<Problem>> {
    let mut bytes = Vec::new();
    // One byte more than allowed, so that `file::parse` can reject a file that is too large.
    let limit = file::MAX_BYTES as u64 + 1;
    let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
    read.map_err(|error| file_problem(path, &PemError::from(error).to_string()))?;
    String::from_utf8(bytes).map_err(|_| file_problem(path, "not UTF-8 text"))
}

/// Reads the file while the proxy runs: it must not be a pipe, which would be waited for.
pub(crate) fn read_again(path: &Path) -> Result<String, Vec<Problem>> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(file_problem(path, "is not a file")),
        _ => read(path),
    }
}

fn file_problem(path: &Path, message: &str) -> Vec<Problem> {
    let message = format!("{}: {message}", path.display());
    Problem::of_file(ProblemKind::File, None, message)
}
