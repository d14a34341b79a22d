//! Problems between a proxy and etcd.

use std::net::SocketAddr;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType, Permission, PermissionType, UserAddOptions};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::{API_SERVICE, Case, YEAR, doctor, file_of, ground, lasting, pair, pair_on, told};
use testkit::addr::Loopback;
use testkit::cluster::Ground;
use testkit::etcd::{Etcd, EtcdOptions};
use testkit::pki::LeafOptions;

/// A server that answers as Go's does to TLS on a plain port.
async fn plain_http() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let mut hello = [0; 16];
            // Who goes away does not want to know.
            let _ = tcp.read_exact(&mut hello).await;
            let _ = tcp.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").await;
        }
    });
    address
}

#[tokio::test]
async fn wrong_files_prefixes_and_endpoints_are_told_apart() {
    let cluster = pair().await;
    let (pki, etcd) = (&cluster.ground.pki, &cluster.ground.etcd);
    let dead = Loopback::new();
    let dead = format!("https://{}", dead.socket(2379));
    let plain = format!("https://{}", plain_http().await);
    let about_plain = format!("etcd {plain}: what listens there speaks no TLS");
    let here = etcd.endpoint();
    let about = format!("etcd {here}: ");
    let about_dead = format!("etcd {dead}: connection refused");
    let ended = LeafOptions::client("etcd-client").expired();
    pki.leaf("etcd-ended", "etcd-ca", &ended);
    let cases: Vec<Case<'_>> = vec![
        (
            "wrong etcd CA",
            vec![("etcd.caFile", pki.file("ca.crt"))],
            vec![vec![&about, "signed by no CA of etcd.caFile"]],
            vec![],
        ),
        (
            "etcd client certificate of another CA",
            vec![
                ("etcd.certFile", pki.file("front-proxy-client.crt")),
                ("etcd.keyFile", pki.file("front-proxy-client.key")),
            ],
            vec![vec![&about, "it rejects etcd.certFile"]],
            vec![],
        ),
        (
            "etcd client certificate expired",
            vec![
                ("etcd.certFile", pki.file("etcd-ended.crt")),
                ("etcd.keyFile", pki.file("etcd-ended.key")),
            ],
            vec![
                vec![&about, "it rejects etcd.certFile"],
                vec!["certificate ", "etcd-ended.crt (etcd.certFile): expired on"],
            ],
            vec![],
        ),
        (
            "wrong etcd prefix",
            vec![("etcd.prefix", "/other".to_owned())],
            vec![vec![
                "etcd.prefix: no kube-apiserver stores anything below /other/",
                "--etcd-prefix",
            ]],
            vec![],
        ),
        (
            "an endpoint that is dead",
            vec![("etcd.endpoints", format!("[{dead}, {here}]"))],
            vec![vec![&about_dead]],
            vec![],
        ),
        (
            "an endpoint that speaks no TLS",
            vec![("etcd.endpoints", format!("[{here}, {plain}]"))],
            vec![vec![&about_plain]],
            vec![],
        ),
    ];
    told(&cluster, cases).await;
}

#[tokio::test]
async fn a_dead_member_and_a_member_of_another_cluster_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let pki = lasting(&dir.path().join("pki"));
    let mut members = Etcd::start_cluster(dir.path(), &pki, 3).await;
    let (key, value) = API_SERVICE;
    members[0]
        .client()
        .await
        .put(key, value, None)
        .await
        .unwrap();
    let endpoints: Vec<_> = members.iter().map(Etcd::endpoint).collect();
    let mut dead = members.pop().unwrap();
    let quiet = EtcdOptions {
        progress_notify: Duration::from_secs(600),
        ..EtcdOptions::default()
    };
    let stranger = Etcd::start_with(dir.path(), &pki, quiet).await;
    let etcd = members.remove(0);
    let _second = members;
    let mut cluster = pair_on(Ground { dir, pki, etcd }).await;
    let config = file_of(&cluster.proxy_a);
    let dir = cluster.ground.dir.path().to_owned();
    let dir = dir.as_path();

    let three = format!("[{}]", endpoints.join(", "));
    let said = doctor(dir, &config, &[("etcd.endpoints", three.clone())]).await;
    said.is_healthy();

    dead.kill();
    // It may have been the leader.
    cluster.ground.etcd.wait_until_it_answers().await;
    let said = doctor(dir, &config, &[("etcd.endpoints", three)]).await;
    let about = format!("etcd {}: connection refused", dead.endpoint());
    said.is("etcd endpoint dead among three", &[&[&about]], &[]);

    let mixed = [&endpoints[..2], &[stranger.endpoint()]]
        .concat()
        .join(", ");
    let said = doctor(dir, &config, &[("etcd.endpoints", format!("[{mixed}]"))]).await;
    let stranger_of = format!("{} of ", stranger.endpoint());
    let about = "etcd.endpoints: these are members of several clusters";
    let quiet = format!("etcd {}: did not report its progress", stranger.endpoint());
    let progress = "--experimental-watch-progress-notify-interval=5s";
    let case = "etcd endpoint of another cluster, without progress";
    said.is(
        case,
        &[&[about, &stranger_of]],
        &[&[&quiet, "within 6 s", progress]],
    );

    let mut etcd = stranger.client().await;
    let (on, kind) = (AlarmAction::Activate, AlarmType::Nospace);
    etcd.alarm(on, kind, None).await.unwrap();
    let said = doctor(
        dir,
        &config,
        &[("etcd.endpoints", format!("[{}]", stranger.endpoint()))],
    )
    .await;
    let about = format!("etcd {}: it reports: ", stranger.endpoint());
    said.is(
        "etcd has no space left",
        &[
            &[&about, "alarm:NOSPACE", "alarm disarm"],
            &["etcd requests: cannot write below ", "space exceeded; do: "],
            &["etcd.prefix: no kube-apiserver stores anything"],
        ],
        &[&[&quiet]],
    );
}

/// Users `etcd-client`, who may do anything, and `limited`, who may not use our keys.
async fn with_permissions(ground: &Ground) {
    for cn in ["root", "limited"] {
        let leaf = LeafOptions::client(cn).for_another(YEAR);
        ground.pki.leaf(cn, "etcd-ca", &leaf);
    }
    let mut etcd = ground.etcd.client().await;
    for user in ["root", "etcd-client", "limited"] {
        let options = UserAddOptions::new().with_no_pwd();
        etcd.user_add(user, "", Some(options)).await.unwrap();
    }
    etcd.role_add("root").await.unwrap();
    etcd.role_add("kubernetes").await.unwrap();
    let below = Permission::new(PermissionType::Readwrite, "/registry/").with_prefix();
    etcd.role_grant_permission("kubernetes", below)
        .await
        .unwrap();
    for (user, role) in [
        ("root", "root"),
        ("etcd-client", "root"),
        ("limited", "kubernetes"),
    ] {
        etcd.user_grant_role(user, role).await.unwrap();
    }
    etcd.auth_enable().await.unwrap();
}

#[tokio::test]
async fn missing_permissions_in_etcd_are_named_with_the_prefixes() {
    let ground = ground().await;
    with_permissions(&ground).await;
    let cluster = pair_on(ground).await;
    let pki = &cluster.ground.pki;
    let config = file_of(&cluster.proxy_a);
    let dir = cluster.ground.dir.path();
    doctor(dir, &config, &[]).await.is_healthy();
    let changes = [
        ("etcd.certFile", pki.file("limited.crt")),
        ("etcd.keyFile", pki.file("limited.key")),
    ];
    let said = doctor(dir, &config, &changes).await;
    let user = "etcd permissions: the user of etcd.certFile may not";
    let ours = "/kube-interop-proxy/registry/live/";
    said.is(
        "etcd user without permission for our keys",
        &[
            &[
                user,
                " read below ",
                ours,
                "/kube-interop-proxy/registry/servers/",
            ],
            &[
                user,
                " write below ",
                ours,
                "/kube-interop-proxy/registry/claims/",
            ],
        ],
        &[],
    );
    assert!(!said.all().contains("below /registry/peerserverleases/"));
}
