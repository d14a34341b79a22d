//! Tokens that the new apiserver has reviewed by the old one (`--authentication-kubeconfig`), through a proxy of the old
//! one.

use serde_json::json;

use super::{CONFIG_MAPS, Mixed, old};
use crate::routing::real_apiservers::LONGER;
use testkit::client::Client;
use testkit::cluster::Ground;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

/// The new apiserver asks the old one's proxy.
async fn delegating() -> (Mixed, Proxy) {
    let ground = Ground::bootstrapped().await;
    let old = old(&ground).await;
    // A proxy of its own: that of the old apiserver starts later.
    let options = ground.proxy("reviews", old.0.addr()).until(Until::Ready);
    let reviews = Proxy::start(options).await;
    let file = ground.dir.path().join("authentication.kubeconfig");
    std::fs::write(&file, ground.pki.kubeconfig(reviews.addr())).unwrap();
    let flags = vec![format!("--authentication-kubeconfig={}", file.display())];
    let mixed = Mixed::beside(ground, old, flags, |options| options).await;
    (mixed, reviews)
}

#[tokio::test]
async fn tokens_of_the_old_apiserver_count_at_the_new_one() {
    let (mixed, _reviews) = delegating().await;
    let [admin, _] = mixed.admins();
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    let made = admin.request("POST", ACCOUNTS, account.to_string()).await;
    assert_eq!(made.code(), 201, "{}", made.text());
    let wanted =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let asked = format!("{ACCOUNTS}/robot/token");
    let issued = admin.request("POST", &asked, wanted.to_string()).await;
    assert_eq!(issued.code(), 201, "{}", issued.text());
    let issued = issued.json()["status"]["token"]
        .as_str()
        .unwrap()
        .to_owned();

    let robot = Client::new(mixed.old.addr(), &mixed.ground.pki).token(&issued);
    eventually("the token is taken", LONGER, async || {
        let answer = robot.get(CONFIG_MAPS).await;
        // Known, and without a role.
        (answer.code() == 403).then_some(()).ok_or(answer.text())
    })
    .await;
    let straight = mixed.at_new.client(&mixed.ground.pki).timeout(LONGER);
    for client in [mixed.rerouted(), straight] {
        for client in [client.http1(), client.http2()] {
            for (token, name, group) in [
                ("tok-bob", "bob", "devs"),
                (
                    issued.as_str(),
                    "system:serviceaccount:default:robot",
                    "system:serviceaccounts",
                ),
            ] {
                let reached = mixed.reached(&client.token(token)).await;
                let [("new", user)] = reached.as_slice() else {
                    panic!("{name}: {reached:?}");
                };
                assert_eq!(user["username"], name);
                let groups = user["groups"].as_array().unwrap();
                assert!(groups.contains(&group.into()), "{groups:?}");
            }
            let invented = client.token("invented").get(CONFIG_MAPS).await;
            assert_eq!(invented.code(), 401, "{}", invented.text());
        }
    }

    // A token that the old one no longer takes, no one does.
    let path = format!("{ACCOUNTS}/robot");
    let deleted = admin.request("DELETE", &path, "").await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    let robot = mixed.rerouted().token(&issued);
    eventually("the token is taken no longer", LONGER, async || {
        let answer = robot.get(CONFIG_MAPS).await;
        (answer.code() == 401).then_some(()).ok_or(answer.text())
    })
    .await;
}
