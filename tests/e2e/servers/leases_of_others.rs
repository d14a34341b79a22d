//! Identity Leases at a real kube-apiserver that keeps none: proxies write them, and the tests as apiservers and users do.

use super::LEASES;
use super::named::an_apiserver_with_an_id_gets_no_second_one_from_its_proxys_name;
use super::published::{
    a_lease_that_was_renewed_out_of_sight_is_not_collected,
    whose_a_lease_is_decides_who_keeps_it_and_who_removes_it,
};
use super::renamed::two_hosts_of_one_name_are_two_servers;
use super::taken_ids::no_lease_makes_a_proxy_take_what_is_anothers;
use testkit::addr::Loopback;
use testkit::cluster::Ground;
use testkit::cut::Cut;
use testkit::etcd::EtcdOptions;
use testkit::kube::KubeApiServer;

#[tokio::test]
async fn whose_a_lease_is_decides_who_keeps_it_and_none_gives_a_proxy_what_is_anothers() {
    let middle = Loopback::new();
    let etcd = EtcdOptions {
        also: vec![middle.ip()],
        ..EtcdOptions::default()
    };
    let ground = &Ground::bootstrapped_with(etcd).await;
    let cut = Cut::start(middle, ground.etcd.addr()).await;
    let options = ground.kube("cp-a");
    let options = options.without_identity().without_group("autoscaling");
    let api = &KubeApiServer::start(options, &ground.pki).await;

    a_lease_that_was_renewed_out_of_sight_is_not_collected(api, ground, &cut).await;
    forget_all_servers(api, ground).await;
    whose_a_lease_is_decides_who_keeps_it_and_who_removes_it(api, ground).await;
    forget_all_servers(api, ground).await;
    an_apiserver_with_an_id_gets_no_second_one_from_its_proxys_name(api, ground).await;
    forget_all_servers(api, ground).await;
    two_hosts_of_one_name_are_two_servers(api, ground).await;
    forget_all_servers(api, ground).await;
    no_lease_makes_a_proxy_take_what_is_anothers(api, ground).await;
}

/// Neither Leases nor keys of the proxies before are there any more.
async fn forget_all_servers(api: &KubeApiServer, ground: &Ground) {
    let deleted = api.admin().request("DELETE", LEASES, "").await;
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    for prefix in ["/kube-interop-proxy/", "/registry/peerserverleases/"] {
        ground.etcd.delete_below(prefix).await;
    }
}
