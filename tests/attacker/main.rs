//! The scripted attacker as a program of its own: starts what it attacks, prints one table, and fails if anybody but a
//! true peer was taken for somebody else. `cargo build --bins && cargo run --example attacker`
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    reason = "a program for people to watch: a failure is a panic with a message"
)]

#[path = "mod.rs"]
mod attacker;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let rows = attacker::attack(&support::proxy::beside_example()).await;
    print!("{}", attacker::table(&rows));
    let (peers, others): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.who == "a true peer");
    let fooled = |row: &&attacker::Row| {
        row.marks.0 > 0
            || row
                .believed
                .keys()
                .any(|who| who.contains("admin") || who.contains("masters"))
    };
    match others.iter().any(fooled) || !peers.iter().all(fooled) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
