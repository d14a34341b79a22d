//! With real kube-apiservers.

use super::{doctor, file_of, ground};
use testkit::etcd::Etcd;
use testkit::kube::KubeApiServer;
use testkit::proxy::{Proxy, Until};

#[tokio::test]
async fn a_real_apiserver_is_healthy_and_other_header_names_are_told() {
    let ground = ground().await;
    let options = ground.kube("cp-a");
    let options = options
        .without("requestheader-username-headers")
        .without("requestheader-group-headers")
        .arg("--requestheader-username-headers=X-Foo-User,X-Bar-User")
        .arg("--requestheader-group-headers=X-Foo-Group");
    let apiserver = KubeApiServer::start(options, &ground.pki).await;
    let proxy = ground
        .proxy("a", apiserver.addr())
        .set(
            "serving.requestHeaderUsernameHeaders",
            "[X-Foo-User, X-Bar-User]",
        )
        .set("serving.requestHeaderGroupHeaders", "[X-Foo-Group]");
    let proxy = Proxy::start(proxy.until(Until::Ready)).await;
    let config = file_of(&proxy);
    let dir = ground.dir.path();
    let said = doctor(dir, &config, &[]).await;
    said.is_healthy();
    println!("{}", said.all());
    let about = format!("apiserver {}: ", apiserver.addr());
    let version = &apiserver.abilities().version;
    assert!(
        said.all().contains(&format!("ok      {about}{version}\n")),
        "{}",
        said.all()
    );

    let user = "serving.requestHeaderUsernameHeaders";
    let group = "serving.requestHeaderGroupHeaders";
    for (case, change, words) in [
        (
            "users' header differs",
            (user, "[X-Remote-User]"),
            ["answers 401 to users", user],
        ),
        (
            "one of the users' headers is not the apiserver's",
            (user, "[X-Foo-User, X-Other-User]"),
            ["ignores x-other-user", user],
        ),
        (
            "groups' header differs",
            (group, "[X-Remote-Group]"),
            ["answers 403 to apiServer.internalUser", group],
        ),
    ] {
        let (key, value) = change;
        let said = doctor(dir, &config, &[(key, value.to_owned())]).await;
        // What differs besides is a warning.
        let differs = [&about, user, "[x-bar-user, x-foo-user]"];
        let differs: &[&[&str]] = match words[0].starts_with("answers") {
            true => &[],
            false => &[&differs],
        };
        said.is(case, &[&[&about, words[0], words[1]]], differs);
    }
    let fewer = [(user, "[X-Foo-User]".to_owned())];
    let said = doctor(dir, &config, &fewer).await;
    let words = [&about, user, "but [x-bar-user, x-foo-user]"];
    said.is("one of the users' headers is missing", &[], &[&words]);
    let wrong = [
        (
            "apiServer.proxyClientCertFile",
            ground.pki.file("not-a-peer.crt"),
        ),
        (
            "apiServer.proxyClientKeyFile",
            ground.pki.file("not-a-peer.key"),
        ),
    ];
    let said = doctor(dir, &config, &wrong).await;
    let certificate = format!("certificate {} ", ground.pki.file("not-a-peer.crt"));
    said.is(
        "front-proxy name not allowed",
        &[
            &[&certificate, "its CN is none of"],
            &[&about, "answers 401"],
        ],
        &[],
    );

    // A proxy in its place, seen from outside: a loop, and not what Go's server says to the same question.
    let changes = [("apiServer.address", format!("\"{}\"", proxy.addr()))];
    let mut elsewhere = config.clone();
    let nobody = testkit::addr::Loopback::new();
    for key in ["serving", "peer"] {
        let name = if key == "serving" {
            "bindAddress"
        } else {
            "advertiseAddress"
        };
        elsewhere[key][name] = format!("{}", nobody.socket(6443)).into();
    }
    elsewhere["admin"]["bindAddress"] = format!("{}", nobody.socket(6450)).into();
    elsewhere["identity"]["serverID"] = "c".into();
    let said = doctor(dir, &elsewhere, &changes).await;
    let about = format!(
        "apiserver {}: a kube-interop-proxy listens there",
        proxy.addr()
    );
    said.is("apiServer.address is a proxy's", &[&[&about]], &[]);
}

#[tokio::test]
async fn what_an_apiserver_stores_in_another_etcd_is_named() {
    let ground = ground().await;
    let other = Etcd::start(ground.dir.path(), &ground.pki).await;
    let at = other.endpoint();
    let overrides =
        format!("--etcd-servers-overrides=/events#{at},coordination.k8s.io/leases#{at}");
    let options = ground.kube("cp-a");
    let apiserver = KubeApiServer::start(options.arg(&overrides), &ground.pki).await;
    let proxy = ground.proxy("a", apiserver.addr());
    let proxy = Proxy::start(proxy.until(Until::Ready)).await;
    let (config, dir) = (file_of(&proxy), ground.dir.path());
    let about = format!(
        "apiserver {}: it stores in another etcd: ",
        apiserver.addr()
    );
    let key = "etcd.otherResources";
    let said = doctor(dir, &config, &[]).await;
    let names = "events, leases.coordination.k8s.io; do: name them in etcd.otherResources";
    said.is("none is named", &[&[&about, names]], &[]);
    let said = doctor(dir, &config, &[(key, "[events]".to_owned())]).await;
    let name = "other etcd: leases.coordination.k8s.io;";
    said.is("one is not named", &[&[&about, name]], &[]);
    let all = "[events, leases.coordination.k8s.io]".to_owned();
    doctor(dir, &config, &[(key, all)]).await.is_healthy();
}
