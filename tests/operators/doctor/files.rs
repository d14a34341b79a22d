//! Problems in the configuration file and the certificate files while the pair runs well.

use std::time::Duration;

use super::{Case, YEAR, pair, serving, told};
use testkit::addr::Loopback;
use testkit::pki::{LeafOptions, SERVER_NAME};

const LOOP: &str = "; each needs an address of its own";
const ELSEWHERE: &str = "proxy here: runs with another configuration than this file";

#[tokio::test]
async fn wrong_addresses_ids_and_header_names_are_told_by_their_cause() {
    let cluster = pair().await;
    let pki = &cluster.ground.pki;
    let (a, b) = (cluster.proxy_a.addr(), cluster.proxy_b.addr());
    let nobody = Loopback::new().socket(6443);
    let double_b = cluster.b.addr();
    let apiserver = format!("apiserver {}: ", cluster.a.addr());
    let apiserver_at_b = format!("apiserver {b}: a kube-interop-proxy listens there");
    let peer_b = format!("peer b {b}: ");
    let id_b = format!("server ID b: the proxy at {b} uses it");
    let advertise_nobody = format!("peer.advertiseAddress {nobody}: nothing listens there");
    let advertise_b = format!("peer.advertiseAddress {b}: leads to another proxy");
    let bind_taken =
        format!("serving.bindAddress {double_b}: taken by something that is not a kube");
    let admin_taken = format!("admin.bindAddress {double_b}: taken by something that is not");
    let cases: Vec<Case<'_>> = vec![
        (
            "apiServer.address is the proxy's own",
            vec![("apiServer.address", format!("\"{a}\""))],
            // Twice: it is both addresses.
            vec![
                vec!["configuration ", LOOP, "serving.bindAddress"],
                vec!["configuration ", LOOP, "peer.advertiseAddress"],
            ],
            vec![],
        ),
        (
            "apiServer.address is a proxy's",
            vec![("apiServer.address", format!("\"{b}\""))],
            vec![vec![
                &apiserver_at_b,
                "in a circle",
                "do: set apiServer.address",
            ]],
            vec![],
        ),
        (
            "the apiserver's CA is another",
            vec![("apiServer.caFile", pki.file("etcd-ca.crt"))],
            vec![vec![&apiserver, "signed by no CA of apiServer.caFile"]],
            vec![],
        ),
        (
            "the apiserver's name is another",
            vec![("apiServer.serverName", "else.example".to_owned())],
            vec![vec![
                &apiserver,
                "not valid for name \"else.example\"",
                "kubernetes.default.svc",
            ]],
            vec![],
        ),
        (
            "users' header differs",
            vec![(
                "serving.requestHeaderUsernameHeaders",
                "[X-Other]".to_owned(),
            )],
            vec![
                vec![
                    &apiserver,
                    "answers 401 to users that this proxy names in x-other",
                    "--requestheader-username-headers",
                ],
                vec![&peer_b, "does not read users from x-other"],
            ],
            vec![],
        ),
        (
            "groups' header differs",
            vec![("serving.requestHeaderGroupHeaders", "[X-Other]".to_owned())],
            vec![vec![
                &apiserver,
                "answers 403 to apiServer.internalUser",
                "--requestheader-group-headers",
            ]],
            vec![],
        ),
        (
            "extra prefix differs",
            vec![(
                "serving.requestHeaderExtraHeaderPrefixes",
                "[X-Other-]".to_owned(),
            )],
            vec![],
            vec![vec![
                &apiserver,
                "serving.requestHeaderExtraHeaderPrefixes is [x-other-], but [x-remote-extra-]",
            ]],
        ),
        (
            "peers' CA is another",
            vec![("peer.caFile", pki.file("etcd-ca.crt"))],
            vec![
                vec![&peer_b, "signed by no CA of peer.caFile"],
                vec!["serving.bindAddress ", "signed by no CA of peer.caFile"],
            ],
            vec![vec![
                "certificate ",
                "apiserver.crt (serving.certFile): it is not signed for servers by a CA of peer.caFile",
            ]],
        ),
        (
            "duplicate server ID",
            vec![("identity.serverID", "b".to_owned())],
            vec![vec![
                &id_b,
                "do: give one of the two another identity.serverID",
            ]],
            vec![vec![ELSEWHERE, "its server ID is a, the file says b"]],
        ),
        (
            "peer.advertiseAddress leads to nobody",
            vec![("peer.advertiseAddress", format!("\"{nobody}\""))],
            vec![vec![&advertise_nobody]],
            vec![vec![ELSEWHERE, "it advertises"]],
        ),
        (
            "peer.advertiseAddress leads to another proxy",
            vec![("peer.advertiseAddress", format!("\"{b}\""))],
            vec![vec![&advertise_b]],
            vec![vec![ELSEWHERE, "it advertises"]],
        ),
        (
            "serving.bindAddress is taken",
            vec![("serving.bindAddress", format!("\"{double_b}\""))],
            vec![vec![&bind_taken, "--bind-address=127.0.0.1"]],
            vec![],
        ),
        (
            "serving.bindAddress is another machine's",
            vec![("serving.bindAddress", "\"192.0.2.1:6443\"".to_owned())],
            vec![vec![
                "serving.bindAddress 192.0.2.1:6443: this machine does not have",
            ]],
            vec![],
        ),
        (
            "admin.bindAddress is taken",
            vec![("admin.bindAddress", format!("\"{double_b}\""))],
            vec![vec![&admin_taken]],
            vec![],
        ),
    ];
    told(&cluster, cases).await;
}

#[tokio::test]
async fn wrong_certificates_are_told_by_their_cause() {
    let cluster = pair().await;
    let pki = &cluster.ground.pki;
    pki.leaf("ended", "ca", &serving(&[SERVER_NAME]).expired());
    let days = Duration::from_secs(10 * 24 * 3600);
    pki.leaf("ending", "ca", &serving(&[SERVER_NAME]).for_another(days));
    let front = LeafOptions::client("front-proxy-client");
    pki.leaf("front-ended", "front-proxy-ca", &front.clone().expired());
    pki.leaf("users", "ca", &front.for_another(YEAR));
    pki.leaf("nameless", "ca", &serving(&["cp-1.example"]));
    let pair_of = |section: &str, name: &str| {
        let file = |end: &str| pki.file(&format!("{name}.{end}"));
        match section {
            "serving" => vec![
                ("serving.certFile", file("crt")),
                ("serving.keyFile", file("key")),
            ],
            _ => vec![
                ("apiServer.proxyClientCertFile", file("crt")),
                ("apiServer.proxyClientKeyFile", file("key")),
            ],
        }
    };
    let about = |name: &str, key: &str| {
        format!("certificate {} ({key}): ", pki.file(&format!("{name}.crt")))
    };
    let client = "apiServer.proxyClientCertFile";
    let (rogue, stranger, ended) = (
        about("rogue", client),
        about("not-a-peer", client),
        about("front-ended", client),
    );
    let user = about("users", client);
    let serving_ended = about("ended", "serving.certFile");
    let serving_ending = about("ending", "serving.certFile");
    let nameless = about("nameless", "serving.certFile");
    let chosen = about("nameless", "serving.sniCertificates[0].certFile");
    let file = |end: &str| pki.file(&format!("nameless.{end}"));
    let by_name = format!(
        "[{{certFile: {}, keyFile: {}, names: [{SERVER_NAME}]}}]",
        file("crt"),
        file("key")
    );
    let ours = about("front-proxy-client", client);
    let apiserver = format!("apiserver {}: the apiserver answers 401", cluster.a.addr());
    let authorities = format!("apiserver {}: none of", cluster.a.addr());
    let apiserver_user = format!("apiserver {}: the apiserver takes users", cluster.a.addr());
    let peer = format!(
        "peer b {}: it rejects this proxy's front-proxy credentials",
        cluster.proxy_b.addr()
    );
    let peer_user = format!(
        "peer b {}: it rejects this proxy's front-proxy credentials: it takes it for user front-proxy-client",
        cluster.proxy_b.addr()
    );
    let rejected = [client, "--requestheader-client-ca-file"];
    let rejected = [&[apiserver.as_str()], &rejected[..]].concat();
    let cases: Vec<Case<'_>> = vec![
        (
            "proxy client certificate of the wrong CA",
            pair_of("client", "rogue"),
            vec![
                vec![
                    &rogue,
                    "peers will reject this proxy's front-proxy credentials",
                ],
                rejected.clone(),
                vec![&peer],
            ],
            vec![],
        ),
        (
            "proxy client certificate of a user",
            pair_of("client", "users"),
            vec![
                vec![
                    &user,
                    "peers will reject this proxy's front-proxy credentials",
                ],
                vec![&apiserver_user, "\"front-proxy-client\""],
                vec![&peer_user],
            ],
            vec![],
        ),
        (
            "front-proxy name not allowed anywhere",
            pair_of("client", "not-a-peer"),
            vec![
                vec![
                    &stranger,
                    "its CN is none of serving.requestHeaderAllowedNames [front-proxy-client]",
                ],
                rejected.clone(),
                vec![&peer],
            ],
            vec![],
        ),
        (
            "front-proxy name not allowed by this file",
            vec![(
                "serving.requestHeaderAllowedNames",
                "[aggregator]".to_owned(),
            )],
            vec![vec![
                &ours,
                "its CN is none of serving.requestHeaderAllowedNames [aggregator]",
            ]],
            vec![],
        ),
        (
            "proxy client certificate expired",
            pair_of("client", "front-ended"),
            vec![
                vec![&ended, "expired on ", "do: renew it"],
                rejected,
                vec![&peer],
            ],
            vec![],
        ),
        (
            "serving certificate expired",
            pair_of("serving", "ended"),
            vec![vec![&serving_ended, "expired on ", "do: renew it"]],
            vec![],
        ),
        (
            "serving certificate about to expire",
            pair_of("serving", "ending"),
            vec![],
            vec![vec![&serving_ending, "about to expire, valid until "]],
        ),
        (
            "serving certificate without the name that peers verify",
            pair_of("serving", "nameless"),
            vec![],
            vec![vec![&nameless, "it lacks the name kubernetes.default.svc"]],
        ),
        (
            "another certificate for the name that peers verify",
            vec![("serving.sniCertificates", by_name)],
            vec![],
            vec![vec![&chosen, "it lacks the name kubernetes.default.svc"]],
        ),
        (
            "authority of other users than the apiserver's",
            vec![("serving.clientCAFile", pki.file("etcd-ca.crt"))],
            vec![vec![
                &authorities,
                "its --client-ca-file is in serving.clientCAFile",
            ]],
            vec![],
        ),
        (
            "key of another certificate",
            vec![("serving.keyFile", pki.file("admin.key"))],
            vec![vec![
                "configuration ",
                "serving.keyFile",
                "the key does not belong to the certificate",
            ]],
            vec![],
        ),
    ];
    told(&cluster, cases).await;
}
