//! Clients that wait for `100 Continue` before they send a body.

use std::future::poll_fn;
use std::process::Command;

use bytes::Bytes;
use http::Request;
use tokio::time::timeout;

use testkit::cluster::{Cluster, HPAS_IN_DEFAULT, LONG};
use testkit::pki::SERVER_NAME;
use testkit::process::{NotFound, Process};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn http2_clients_get_100_continue_once_their_request_was_sent_on() {
    let cluster = Cluster::new().await;
    let admin = cluster.client().cert("admin");
    let config_map = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}"#;
    let hpa = r#"{"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "one"}}"#;
    // Here, and rerouted.
    for (path, body) in [(CONFIG_MAPS, config_map), (HPAS_IN_DEFAULT, hpa)] {
        let tls = admin.connect_raw(&["h2"]).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(tls).await.unwrap();
        tokio::spawn(connection);
        let post = Request::post(format!("https://x{path}")).header("expect", "100-continue");
        let post = post.header("content-type", "application/json").body(());
        let (mut answer, mut upload) = sender.send_request(post.unwrap(), false).unwrap();
        let interim = poll_fn(|context| answer.poll_informational(context));
        let interim = timeout(LONG, interim).await.expect("an interim answer");
        assert_eq!(interim.unwrap().unwrap().status(), 100, "{path}");
        upload.send_data(Bytes::from(body), true).unwrap();
        let answer = timeout(LONG, answer).await.expect("an answer").unwrap();
        assert_eq!(answer.status(), 201, "{path}");
    }
}

#[tokio::test]
async fn curl_does_not_wait_for_its_100_continue() {
    let cluster = Cluster::new().await;
    let pki = &cluster.ground.pki;
    for version in ["--http1.1", "--http2"] {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", version]);
        command.args([
            "--cacert",
            &pki.file("ca.crt"),
            "--cert",
            &pki.file("admin.crt"),
        ]);
        command.args([
            "--key",
            &pki.file("admin.key"),
            "--data-binary",
            "@/proc/self/exe",
        ]);
        // Longer than this test waits.
        command.args(["-H", "Expect: 100-continue", "--expect100-timeout", "3600"]);
        command.args(["--output", "/dev/null", "--write-out", "%{http_code}"]);
        command.args(["--connect-to", &format!("::{}", cluster.proxy_a.addr())]);
        command.arg(format!("https://{SERVER_NAME}/_double/echo"));
        let log = cluster.ground.dir.path().join(format!("curl{version}.log"));
        let mut curl = match Process::spawn("curl", &mut command, &log) {
            Ok(process) => process,
            Err(NotFound) => testkit::missing("curl", "apt-get install curl"),
        };
        let status = curl.wait(LONG).await;
        let said = std::fs::read_to_string(&log).unwrap();
        assert!(
            status.success() && said == "200",
            "{version}: {status} {said}"
        );
    }
}
