//! What a run of tests should tell beside passed and failed: which tests were skipped, never silently, and which
//! versions of real apiservers which tests started. In the file of [`VARIABLE`], a line each; `tests/run.sh` prints the
//! skipped ones at its end, and `tests/compatibility.sh` makes a table of all.

use std::fs::File;
use std::io::Write as _;

/// The file's name.
pub const VARIABLE: &str = "KUBE_INTEROP_NOTES";

/// The test that calls it is skipped. It returns then.
pub fn skipped(reason: &str) {
    tell(&note("skipped", reason));
}

/// A part of the test that calls it is skipped, and the rest is not.
pub fn part_skipped(reason: &str) {
    tell(&note("part-skipped", reason));
}

/// The test that calls it has started a real apiserver.
pub fn started(server: &str) {
    note("started", server);
}

/// All tests that say so run with these real apiservers.
pub fn given(servers: &str) {
    tell(&note("given", servers));
}

/// Past the test runner, which shows what is printed only of tests that fail.
fn tell(line: &str) {
    // Who has closed standard error does not want to know.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn note(what: &str, about: &str) -> String {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    let line = format!("{what}: {test}: {about}\n");
    if let Some(path) = std::env::var_os(VARIABLE) {
        let file = File::options().create(true).append(true).open(&path);
        let mut file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        file.write_all(line.as_bytes()).expect("a note");
    }
    line
}
