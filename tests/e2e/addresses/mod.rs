//! Addresses that a proxy listens on: additional ones that come and go, IPv6, and a virtual IP that moves between
//! proxies. Each test has a network of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use testkit::client::Client;
use testkit::cluster::{Cluster, Ground, HPAS, LONG, Single, patient};
use testkit::double::{Double, DoubleOptions, v1_20};
use testkit::etcd::{Etcd, EtcdOptions};
use testkit::network::{Neighbor, add_address, ip, remove_address, runs_inside};
use testkit::pki::Pki;
use testkit::process::Signal;
use testkit::proxy::{Proxy, Until};
use testkit::wait::{eventually, holds};

/// Long enough to look who listens.
const LOOKS: Duration = Duration::from_secs(1);
const PODS: &str = "/api/v1/namespaces/default/pods";

fn socket(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

#[tokio::test]
async fn an_additional_address_is_served_whenever_it_is_there() {
    if !runs_inside("addresses::an_additional_address_is_served_whenever_it_is_there") {
        return;
    }
    let additional = "['10.9.0.100:6443', '[fd00:9::100]:6443']";
    let mut world =
        Single::with(|options| options.set("serving.additionalBindAddresses", additional)).await;
    for address in ["10.9.0.100:6443", "[fd00:9::100]:6443"] {
        let address = socket(address);
        let client = Client::new(address, &world.ground.pki).cert("admin");
        for round in 0..3 {
            let absent = client.fresh().try_get(PODS).await;
            assert!(absent.is_err(), "{address}, round {round}");
            add_address(address.ip()).await;
            for client in [client.http1(), client.http2()] {
                let answer = client.get(PODS).await;
                assert_eq!(answer.code(), 200, "{address}, round {round}");
            }
            remove_address(address.ip());
        }
    }
    assert_eq!(world.client().get("/version").await.code(), 200);
    assert_eq!(world.proxy.terminate().await.code(), Some(0));
}

#[tokio::test]
async fn the_bind_address_itself_must_be_there() {
    if !runs_inside("addresses::the_bind_address_itself_must_be_there") {
        return;
    }
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let options = ground
        .proxy("a", double.addr())
        .at(socket("10.9.0.1:6443"))
        .until(Until::Spawned);
    let mut proxy = Proxy::start(options).await;
    assert_eq!(proxy.process().wait(LONG).await.code(), Some(1));
    let log = proxy.log_tail();
    assert!(log.contains("cannot listen on 10.9.0.1:6443"), "{log}");
}

/// As `uninstall` does, which makes the apiserver listen at this address. Others serve all the time.
#[tokio::test]
async fn a_proxy_that_is_removed_leaves_its_address_with_its_apiserver() {
    let options = |options| patient(options).set("shutdown.delay", "1m");
    let mut cluster = Cluster::with(v1_20(), options).await;
    let (address, client) = (cluster.proxy_a.addr(), cluster.client().cert("admin"));
    let is_free = async || TcpListener::bind(address).await.is_ok();
    let is_served = async || client.fresh().try_get(PODS).await.is_ok();
    cluster.a.stop().await;
    holds("others serve for it", LOOKS, is_served).await;
    cluster.a.start_again().await;
    cluster.a.set_ready(true);
    let leaving = cluster.proxy_a.config_file().with_file_name("leaving");
    for is_taken_back in [true, false] {
        std::fs::write(&leaving, "").unwrap();
        let proxy = &cluster.proxy_a;
        eventually("balancers are told", LONG, async || !proxy.is_ready().await).await;
        holds("its apiserver is there", LOOKS, is_served).await;
        if is_taken_back {
            std::fs::remove_file(&leaving).unwrap();
            eventually("it stays", LONG, async || proxy.is_ready().await).await;
        }
    }
    cluster.a.stop().await;
    eventually("the address is free", LONG, is_free).await;
    cluster.a.start_again().await;
    eventually("it is served again", LONG, is_served).await;
    let stopping = cluster.proxy_a.process();
    stopping.signal(Signal::Term);
    cluster.a.stop().await;
    eventually("the address is free", LONG, is_free).await;
    assert_eq!(stopping.exited(), None, "it goes on for shutdown.delay");
    stopping.signal(Signal::Term);
    assert_eq!(stopping.wait(LONG).await.code(), Some(1));
}

#[tokio::test]
async fn proxies_reach_each_other_over_ipv6() {
    if !runs_inside("addresses::proxies_reach_each_other_over_ipv6") {
        return;
    }
    for address in ["fd00:9::a", "fd00:9::b"] {
        add_address(address.parse().unwrap()).await;
    }
    let cluster = Cluster::on(Ground::new().await, v1_20(), |id, options| {
        patient(options).at(socket(&format!("[fd00:9::{id}]:6443")))
    })
    .await;
    let client = cluster.client().cert("admin");
    for client in [client.http1(), client.http2()] {
        let answer = client.get(HPAS).await;
        assert_eq!(answer.code(), 200, "{}", answer.text());
    }
    assert_eq!(cluster.b.count(HPAS), 2);
}

/// Two nodes: one in the test's network, one in another.
struct Nodes {
    near: Double,
    far: Double,
    _proxies: [Proxy; 2],
    neighbor: Neighbor,
    ground: Ground,
    _forwarder: JoinSet<()>,
}

const NEAR: &str = "10.9.0.1";
const FAR: &str = "10.9.0.2";
const VIRTUAL: &str = "10.9.0.100";

impl Nodes {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::new(&dir.path().join("pki"));
        let options = EtcdOptions {
            also: vec![NEAR.parse().unwrap()],
            ..EtcdOptions::default()
        };
        let etcd = Etcd::start_with(dir.path(), &pki, options).await;
        let ground = Ground { dir, pki, etcd };
        let neighbor = Neighbor::new(
            ground.dir.path(),
            &format!("{NEAR}/24"),
            &format!("{FAR}/24"),
        )
        .await;
        let forwarder = forward(socket(&format!("{NEAR}:2379")), ground.etcd.addr()).await;
        let near = ground.double(v1_20()).await;
        let mut options = DoubleOptions::new(ground.pki.dir(), v1_20());
        options.listen = Some(socket(&format!("{NEAR}:7443")));
        let far = Double::start(options).await;
        let additional = format!("['{VIRTUAL}:6443']");
        let proxy = |id, double: &Double, host: &str| {
            patient(ground.proxy(id, double.addr()))
                .at(socket(&format!("{host}:6443")))
                .set("serving.additionalBindAddresses", &additional)
        };
        let of_near = Proxy::start(proxy("near", &near, NEAR).until(Until::Ready)).await;
        let of_far = proxy("far", &far, FAR)
            .set("etcd.endpoints", &format!("['https://{NEAR}:2379']"))
            .in_network(neighbor.command());
        let of_far = Proxy::start(of_far).await;
        let asking = of_far.client(&ground.pki).cert("admin");
        eventually("the far proxy is ready", LONG, async || {
            let answer = asking.fresh().try_get("/readyz").await;
            answer
                .map_err(|error| format!("{error:#}"))
                .and_then(|answer| (answer.code() == 200).then_some(()).ok_or(answer.text()))
        })
        .await;
        Self {
            near,
            far,
            _proxies: [of_near, of_far],
            neighbor,
            ground,
            _forwarder: forwarder,
        }
    }
}

async fn forward(from: SocketAddr, to: SocketAddr) -> JoinSet<()> {
    let listener = TcpListener::bind(from).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut pipes = JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            pipes.spawn(async move {
                if let Ok(mut far) = TcpStream::connect(to).await {
                    // Both ends learn of an error by the close.
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                }
            });
        }
    });
    tasks
}

/// Clients that ask on a new connection each time, whatever happens.
struct Load {
    served: Arc<AtomicUsize>,
    clients: JoinSet<()>,
}

impl Load {
    fn start(client: &Client) -> Self {
        const CLIENTS: usize = 4;
        let served = Arc::new(AtomicUsize::new(0));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (client, served) = (client.timeout(Duration::from_secs(1)), served.clone());
            clients.spawn(async move {
                loop {
                    let client = client.fresh();
                    let asked = tokio::time::timeout(Duration::from_secs(2), client.try_get(PODS));
                    match asked.await {
                        Ok(Ok(answer)) => {
                            assert_eq!(answer.code(), 200, "{}", answer.text());
                            served.fetch_add(1, Ordering::Relaxed);
                        }
                        // The address is on its way.
                        _ => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                }
            });
        }
        Self { served, clients }
    }

    /// Waits until clients are served, and by this server.
    async fn until_served_by(&self, server: &Double) {
        let served = || self.served.load(Ordering::Relaxed);
        let (goal, before) = (served() + 20, server.count(PODS));
        eventually("it serves", LONG, async || {
            served() >= goal && server.count(PODS) >= before + 20
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_virtual_address_moves_between_proxies_under_load() {
    if !runs_inside("addresses::a_virtual_address_moves_between_proxies_under_load") {
        return;
    }
    let nodes = Nodes::new().await;
    ip(&format!("addr add {VIRTUAL}/32 dev near"));
    let client = Client::new(socket(&format!("{VIRTUAL}:6443")), &nodes.ground.pki);
    let mut load = Load::start(&client.cert("admin"));
    load.until_served_by(&nodes.near).await;
    for round in 0..3 {
        let moved = Instant::now();
        ip(&format!("addr del {VIRTUAL}/32 dev near"));
        nodes.neighbor.ip(&format!("addr add {VIRTUAL}/32 dev far"));
        load.until_served_by(&nodes.far).await;
        println!("round {round}: far after {:?}", moved.elapsed());
        let moved = Instant::now();
        nodes.neighbor.ip(&format!("addr del {VIRTUAL}/32 dev far"));
        ip(&format!("addr add {VIRTUAL}/32 dev near"));
        load.until_served_by(&nodes.near).await;
        println!("round {round}: near after {:?}", moved.elapsed());
    }
    assert!(load.clients.try_join_next().is_none(), "a client panicked");
}

/// As after a split between the nodes, when both think that they have to have it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_virtual_address_on_two_nodes_is_served_by_both() {
    if !runs_inside("addresses::a_virtual_address_on_two_nodes_is_served_by_both") {
        return;
    }
    let nodes = Nodes::new().await;
    let client = Client::new(socket(&format!("{VIRTUAL}:6443")), &nodes.ground.pki);
    let client = client.cert("admin");
    nodes.neighbor.ip(&format!("addr add {VIRTUAL}/32 dev far"));
    let mut load = Load::start(&client);
    load.until_served_by(&nodes.far).await;
    // A client goes to the node that it is on, or that answered its question for the address last.
    ip(&format!("addr add {VIRTUAL}/32 dev near"));
    load.until_served_by(&nodes.near).await;
    ip(&format!("addr del {VIRTUAL}/32 dev near"));
    load.until_served_by(&nodes.far).await;
    assert!(load.clients.try_join_next().is_none(), "a client panicked");
}
