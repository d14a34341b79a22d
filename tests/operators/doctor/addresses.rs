//! Addresses of this host, in a network of the test's own.

use tokio::net::TcpListener;

use super::{doctor, file_of, pair};
use testkit::network::{add_address, runs_inside};

#[tokio::test]
async fn an_address_where_the_port_is_answered_and_the_proxy_does_not_listen_is_named() {
    const NAME: &str = "doctor::addresses::an_address_where_the_port_is_answered_and_the_proxy_does_not_listen_is_named";
    if !runs_inside(NAME) {
        return;
    }
    let cluster = pair().await;
    let dir = cluster.ground.dir.path().to_owned();
    for address in ["10.9.0.5", "10.9.0.6"] {
        add_address(address.parse().unwrap()).await;
    }
    let _apiserver = TcpListener::bind("10.9.0.5:6443").await.unwrap();
    let file = file_of(&cluster.proxy_a);
    let said = doctor(&dir, &file, &[]).await;
    let warning = "warning port 6443: something listens at 10.9.0.5:6443 now, but this proxy will not; do: add";
    assert!(said.all().contains(warning), "{}", said.all());
    assert_eq!(said.code, Some(0));

    let additional = "['10.9.0.5:6443', '10.9.0.7:6443']".to_owned();
    let said = doctor(
        &dir,
        &file,
        &[("serving.additionalBindAddresses", additional)],
    )
    .await;
    assert!(!said.all().contains("something listens"), "{}", said.all());
}

#[tokio::test]
async fn an_address_of_another_node_and_a_family_without_a_route_are_named() {
    const NAME: &str =
        "doctor::addresses::an_address_of_another_node_and_a_family_without_a_route_are_named";
    if !runs_inside(NAME) {
        return;
    }
    let cluster = pair().await;
    let dir = cluster.ground.dir.path().to_owned();
    let file = file_of(&cluster.proxy_a);
    for (key, address, told) in [
        (
            "serving.bindAddress",
            "10.9.0.2:6443",
            "serving.bindAddress 10.9.0.2:6443: this machine does not have this address",
        ),
        (
            "peer.advertiseAddress",
            "'[2001:db8::5]:6443'",
            "peer.advertiseAddress [2001:db8::5]:6443: cannot connect: Network is unreachable",
        ),
    ] {
        let said = doctor(&dir, &file, &[(key, address.to_owned())]).await;
        assert!(said.all().contains(told), "{}", said.all());
        assert_eq!(said.code, Some(1));
    }
}
