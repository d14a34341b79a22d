//! Logs that nobody takes.

use std::path::Path;
use std::process::Command;

use crate::cluster::{LONG, Single, binary};
use crate::support::process::{Process, Signal};
use crate::support::wait::eventually;

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
