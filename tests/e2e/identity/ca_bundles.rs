//! Bundles and chains that are so long that clients cannot be sent them in a handshake.

use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};

use testkit::cluster::{Ground, LONG, Single, binary};
use testkit::double::v1_20;
use testkit::kubectl::Kubectl;
use testkit::pki::{LeafOptions, Pki, SERVER_NAME};
use testkit::proxy::Proxy;
use testkit::wait::eventually;

use super::rotation::{BROKEN, PODS, with_own_users};

/// So many CAs in PEM, each with a name of 152 bytes. The last one is `more`.
fn authorities(pki: &mut Pki, count: usize) -> String {
    let mut text = String::new();
    for number in 0..count {
        pki.add_ca("more", &format!("{number:0>135}"));
        text += &std::fs::read_to_string(pki.path("more.crt")).unwrap();
    }
    text
}

/// Whether openssl is told names of CAs; panics if there is no handshake.
fn is_told_names(to: SocketAddr, version: &str) -> bool {
    let output = Command::new("openssl")
        .args([
            "s_client",
            "-connect",
            &to.to_string(),
            "-servername",
            SERVER_NAME,
            version,
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|_| testkit::missing("openssl", "apt-get install openssl"));
    let said = String::from_utf8_lossy(&output.stdout);
    let none = said.contains("No client certificate CA names sent");
    let some = said.contains("Acceptable client certificate CA names");
    assert!(
        some != none,
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    some
}

fn check(proxy: &Proxy, more: &[&str]) -> Output {
    let mut command = Command::new(binary());
    let command = command.args(["check", "--config"]).arg(proxy.config_file());
    command.args(more).output().unwrap()
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr]
        .map(String::from_utf8_lossy)
        .concat()
}

#[tokio::test]
async fn names_of_cas_that_do_not_fit_into_a_handshake_are_left_out() {
    let mut ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let (mut proxy, users) = with_own_users(&ground, &double).await;
    let own = std::fs::read_to_string(&users).unwrap();
    // With those of the cluster, just below the limit of TLS and above it.
    for (count, is_told) in [(418, true), (450, false)] {
        let more = authorities(&mut ground.pki, count);
        let late = LeafOptions::client("kubernetes-admin").org("system:masters");
        ground.pki.leaf("late", "more", &late);
        std::fs::write(&users, own.clone() + &more).unwrap();
        let client = proxy.client(&ground.pki);
        eventually("a user of the last CA is let in", LONG, async || {
            client.cert("late").get(PODS).await.code() == 200
        })
        .await;
        for version in ["-tls1_2", "-tls1_3"] {
            assert_eq!(is_told_names(proxy.addr(), version), is_told, "{version}");
        }
        // A client of Go.
        for name in ["admin", "late"] {
            assert_eq!(client.cert(name).get(PODS).await.code(), 200, "{name}");
            let kubectl = Kubectl::new(proxy.addr(), &ground.pki, ground.dir.path());
            kubectl
                .cert(&ground.pki, name)
                .run(&["get", "--raw", PODS])
                .await;
        }
        assert_eq!(client.cert("rogue").get(PODS).await.code(), 401);
        assert_eq!(check(&proxy, &[]).status.code(), Some(0));
    }
    proxy.terminate().await;
    proxy.start_again().await;
    let late = proxy.client(&ground.pki).cert("late");
    assert_eq!(late.get(PODS).await.code(), 200);
}

#[tokio::test]
async fn files_with_which_no_handshake_succeeds_are_not_used() {
    const WHY: &str = "no TLS handshake succeeds";
    let mut single = Single::new().await;
    let admin = single.client().cert("admin");
    let serving = single.ground.pki.path("apiserver.crt");
    let good = std::fs::read_to_string(&serving).unwrap();
    let more = authorities(&mut single.ground.pki, 200);
    let broken = async |proxy: &Proxy| proxy.metric(BROKEN, &[("files", "serving")]).await;
    // A chain that is longer than a message of TLS may be.
    std::fs::write(&serving, good.clone() + &more).unwrap();
    eventually("that is noticed", LONG, async || {
        broken(&single.proxy).await == 1.0
    })
    .await;
    assert!(single.proxy.log_tail().contains(WHY));
    assert_eq!(admin.fresh().get(PODS).await.code(), 200);
    for more in [&[][..], &["--live"]] {
        let check = check(&single.proxy, more);
        assert_eq!(check.status.code(), Some(1), "{}", said(&check));
        assert!(said(&check).contains(WHY), "{}", said(&check));
    }
    let mut run = Command::new(binary());
    let run = run
        .args(["run", "--config"])
        .arg(single.proxy.config_file());
    let run = run.output().unwrap();
    assert_eq!(run.status.code(), Some(64), "{}", said(&run));
    assert!(said(&run).contains(WHY), "{}", said(&run));

    std::fs::write(&serving, &good).unwrap();
    eventually("it is good again", LONG, async || {
        broken(&single.proxy).await == 0.0
    })
    .await;
    assert_eq!(admin.fresh().get(PODS).await.code(), 200);
}
