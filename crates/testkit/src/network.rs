//! Networks of a test's own, in which it may add and remove addresses: network namespaces.
//!
//! A test calls [`runs_inside`] first. It runs itself again in a new namespace, where 127.0.0.0/8 and every port are
//! free, and where the whole of it happens. [`Neighbor`] is one more namespace, connected to that one.

use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use super::kube::is_root;
use super::process::Process;
use super::wait::eventually;

/// Set in the run inside.
const INSIDE: &str = "TEST_RUNS_IN_ITS_OWN_NETWORK";
const START: Duration = Duration::from_secs(30);

/// Whether this is the run inside: then the test goes on. The run outside returns when that one has passed.
///
/// `test`: its full name. Without the right to make namespaces a test is skipped, but fails in CI.
pub fn runs_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let probe = output(unshare().args(["true"]));
    if !probe.status.success() {
        let why = String::from_utf8_lossy(&probe.stderr).into_owned();
        assert!(
            std::env::var_os("CI").is_none(),
            "this CI job may not make network namespaces: {why}"
        );
        super::notes::skipped(&format!(
            "no network namespace can be made here: {}",
            why.trim()
        ));
        return false;
    }
    let own = std::env::current_exe().expect("own path");
    let mut again = unshare();
    again
        .arg(own)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1");
    let done = output(&mut again);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    println!("{said}{}", String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{test} failed inside its network");
    assert!(said.contains("1 passed"), "there is no test {test}");
    false
}

/// Runs a program in a new network namespace.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args([
        "--net",
        "sh",
        "-c",
        "ip link set lo up && exec \"$@\"",
        "sh",
    ]);
    command
}

fn output(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|_| super::missing("unshare", "apt-get install util-linux"))
}

/// `ip ARGUMENTS` in the test's network; for [`runs_inside`] only.
pub fn ip(arguments: &str) {
    assert!(std::env::var_os(INSIDE).is_some(), "not the test's network");
    let words = arguments.split_whitespace();
    checked(Command::new("ip").args(words), arguments);
}

/// Adds an address to the loopback device. The kernel may take a moment to use one of IPv6.
pub async fn add_address(address: IpAddr) {
    let (bits, option) = match address {
        IpAddr::V4(_) => (32, ""),
        IpAddr::V6(_) => (128, "nodad"),
    };
    ip(&format!("addr add {address}/{bits} dev lo {option}"));
    let address = address.to_string();
    eventually("the address is there", START, async || {
        let route = Command::new("ip").args(["route", "get", &address]).output();
        route.is_ok_and(|route| String::from_utf8_lossy(&route.stdout).starts_with("local "))
    })
    .await;
}

/// Removes it.
pub fn remove_address(address: IpAddr) {
    let bits = if address.is_ipv4() { 32 } else { 128 };
    ip(&format!("addr del {address}/{bits} dev lo"));
}

fn checked(command: &mut Command, what: &str) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{what}: {error}; apt-get install iproute2 util-linux"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {error}");
}

/// Another network, connected to the test's by an Ethernet cable.
pub struct Neighbor {
    /// Has nothing to do but to keep the network.
    keeper: Process,
}

impl Neighbor {
    /// `near`, `far`: addresses of the two ends of the cable, with the lengths of their prefixes.
    pub async fn new(dir: &Path, near: &str, far: &str) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "3600"]);
        let log = dir.join("neighbor.log");
        let Ok(mut keeper) = Process::spawn("unshare", &mut command, &log) else {
            super::missing("unshare", "apt-get install util-linux");
        };
        let name = format!("/proc/{}/comm", keeper.pid());
        keeper
            .ready(START, async || match std::fs::read_to_string(&name) {
                Ok(name) if name == "sleep\n" => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await;
        let neighbor = Self { keeper };
        ip(&format!(
            "link add near type veth peer name far netns {}",
            neighbor.keeper.pid()
        ));
        ip(&format!("addr add {near} dev near"));
        ip("link set near up");
        neighbor.ip("link set lo up");
        neighbor.ip(&format!("addr add {far} dev far"));
        neighbor.ip("link set far up");
        eventually("the cable is plugged in", START, async || is_up()).await;
        neighbor
    }

    /// What runs a program there, to be followed by the program and its arguments.
    pub fn command(&self) -> Vec<String> {
        let target = format!("--target={}", self.keeper.pid());
        ["nsenter", &target, "--net", "--"]
            .map(str::to_owned)
            .to_vec()
    }

    /// `ip ARGUMENTS` there.
    pub fn ip(&self, arguments: &str) {
        let words = self.command();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("ip");
        checked(command.args(arguments.split_whitespace()), arguments);
    }
}

fn is_up() -> bool {
    let shown = Command::new("ip").args(["link", "show", "near"]).output();
    shown.is_ok_and(|shown| String::from_utf8_lossy(&shown.stdout).contains("state UP"))
}
