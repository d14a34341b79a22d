//! Logs and command output that cannot be written.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use testkit::cluster::{LONG, Single, binary};
use testkit::process::{Process, Signal};
use testkit::wait::eventually;

#[tokio::test]
async fn a_log_that_cannot_be_written_stops_nothing() {
    let mut world = Single::new().await;
    world.proxy.kill();
    for format in ["text", "json"] {
        let mut command = Command::new(binary());
        command.args(["run", "--log-format", format, "--config"]);
        command.arg(world.proxy.config_file());
        command.env("RUST_LOG", "info,access=info");
        let full = Path::new("/dev/full");
        let mut process = Process::spawn("kube-interop-proxy", &mut command, full).unwrap();
        // The probe, etcd's followers and all others went on after what they had to say.
        eventually("it is ready", LONG, async || {
            (world.proxy.is_ready().await && process.exited().is_none()).then_some(())
        })
        .await;
        let client = world.client().cert("admin");
        for _ in 0..2 {
            assert_eq!(client.get("/version").await.code(), 200);
        }
        process.signal(Signal::Term);
        assert!(process.wait(LONG).await.success());
    }
}

/// Where nothing can be written.
fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

async fn run(arguments: &[&str], stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).stdin(Stdio::null());
    command.stdout(stdout).stderr(stderr);
    let child = command.spawn().unwrap();
    let output = tokio::task::spawn_blocking(move || child.wait_with_output());
    output.await.unwrap().unwrap()
}

#[tokio::test]
async fn an_answer_that_cannot_be_written_is_a_failure_with_one_line() {
    let single = Single::new().await;
    let (config, admin) = (single.proxy.config_file(), single.proxy.admin().to_string());
    let config = config.to_str().unwrap();
    for arguments in [
        &["version"][..],
        &["check", "--config", config],
        &["check", "--live", "--config", config],
        &["status", "--admin", &admin],
    ] {
        let output = run(arguments, full(), Stdio::piped()).await;
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            line, "cannot write: No space left on device (os error 28)\n",
            "{arguments:?}"
        );
        let output = run(arguments, full(), full()).await;
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    }
    for arguments in [&["version"][..], &["check", "--config", config]] {
        // Whoever would have read it has gone.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = run(arguments, writer, Stdio::piped()).await;
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(output.stderr, b"", "{arguments:?}");
    }
}

#[tokio::test]
async fn a_problem_that_cannot_be_written_is_told_by_the_exit_code() {
    for (arguments, code) in [
        (&["check", "--config", "/nowhere"][..], 1),
        (&["run", "--config", "/nowhere"], 64),
        (&["forget", "cp-3", "--yes", "--config", "/nowhere"], 64),
        (&["forget", "cp-3", "--config", "/nowhere"], 64),
        (&["status", "--admin", "127.0.0.1:1"], 1),
    ] {
        let output = run(arguments, full(), full()).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    }
}
