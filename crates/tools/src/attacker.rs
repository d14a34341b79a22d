//! The scripted attacker as a program of its own: starts what it attacks, prints one table, and fails if anybody but a
//! true peer was taken for somebody else. `cargo build --workspace --bins && target/debug/attacker`
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "a program for people to watch: a failure is a panic with a message"
)]

use std::process::ExitCode;

use testkit::attacker;
use testkit::process::program;

#[tokio::main]
async fn main() -> ExitCode {
    let rows = attacker::attack(&program("kube-interop-proxy")).await;
    print!("{}", attacker::table(&rows));
    let (peers, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.who == "a true peer");
    let fooled = |row: &&attacker::Row| {
        row.marks.0 > 0
            || row
                .accepted
                .keys()
                .any(|who| who.contains("admin") || who.contains("masters"))
    };
    match others.iter().any(fooled) || !peers.iter().all(fooled) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
