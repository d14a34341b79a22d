//! Names the commit that the program is built from, as the environment variable `KUBE_INTEROP_PROXY_COMMIT` of the compiler.
//!
//! The caller may name it: builds of packages have no git. Otherwise git is asked, but only for optimized builds: each
//! commit would have debug builds compiled anew.

use std::path::Path;
use std::process::Command;

const NAME: &str = "KUBE_INTEROP_PROXY_COMMIT";
/// What the program is made of.
const SOURCES: [&str; 5] = [
    "build.rs",
    "Cargo.toml",
    "Cargo.lock",
    "src",
    "crates/if-ready",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={NAME}");
    let named = std::env::var(NAME).ok().filter(|it| !it.is_empty());
    let commit = named.or_else(|| optimized().then(of_git).flatten());
    let commit = commit.filter(|it| it.bytes().all(|byte| byte.is_ascii_graphic()));
    println!(
        "cargo::rustc-env={NAME}={}",
        commit.as_deref().unwrap_or("unknown")
    );
}

fn optimized() -> bool {
    std::env::var("OPT_LEVEL").is_ok_and(|level| level != "0")
}

/// The commit, with `-dirty` if the sources are not those of the commit.
fn of_git() -> Option<String> {
    // Not the repository of others that this tree was unpacked into.
    let below = git(&["rev-parse", "--show-prefix"])?;
    if !below.is_empty() {
        return None;
    }
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        // Cargo takes a file that is not there for one that has changed.
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    for path in SOURCES {
        println!("cargo::rerun-if-changed={path}");
    }
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&[&["status", "--porcelain", "--"], &SOURCES[..]].concat())?;
    let dirty = if changes.is_empty() { "" } else { "-dirty" };
    Some(commit + dirty)
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_owned())
}
