//! The front door: who is not known ends connections at the new apiserver, and has streams of few; through the proxies
//! that harms nobody else.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use super::{CONFIG_MAPS, Mixed, create};
use testkit::client::{Client, Streaming};
use testkit::cluster::LONG;
use testkit::wire::{Pieces, Wire, request};

const HOST: &str = "kubernetes.default.svc";

/// Whether an HTTP/2 connection ends after this request, and its answer's code. `due`: that it ends is expected.
async fn ends(client: &Client, token: Option<&str>, due: bool) -> (u16, bool) {
    let mut wire = Wire::http2(client).await;
    let mut get = request("GET", CONFIG_MAPS, Pieces::default());
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().unwrap();
        get.headers_mut().insert("authorization", value);
    }
    let answer = wire.send(HOST, get).await.unwrap();
    // A GOAWAY comes with the answer, or never.
    let patience = if due { LONG } else { Duration::from_secs(1) };
    let gone = async {
        while wire.is_open() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    (answer.code(), timeout(patience, gone).await.is_ok())
}

pub(super) async fn strangers_harm_nobody_else(mixed: &Mixed) {
    // First: nobody has been answered yet, and is known.
    more_watches_than_an_apiserver_allows_streams_all_get_their_events(mixed).await;
    connections_of_strangers_end_at_a_proxy_as_at_its_own_apiserver(mixed).await;
    strangers_who_are_sent_on_to_the_new_apiserver_cost_nobody_a_request(mixed).await;
}

async fn connections_of_strangers_end_at_a_proxy_as_at_its_own_apiserver(mixed: &Mixed) {
    let pki = &mixed.ground.pki;
    for (proxy, server) in [
        (mixed.at_new.addr(), mixed.new.addr()),
        (mixed.at_old.addr(), mixed.old.addr()),
    ] {
        let of_new = server == mixed.new.addr();
        for (what, token, code) in [
            ("nobody", None, 403),
            ("an invented token", Some("invented"), 401),
            ("the administrator", Some("tok-admin"), 200),
        ] {
            let due = of_new && code != 200;
            let what = format!("{what}, new: {of_new}");
            let straight = ends(&Client::new(server, pki), token, due).await;
            assert_eq!(straight, (code, due), "{what}");
            // Of an old apiserver the proxy ends what is 401, too.
            let due = due || code == 401;
            let through = ends(&Client::new(proxy, pki), token, due).await;
            assert_eq!(through, (code, due), "{what}");
        }
    }
}

async fn strangers_who_are_sent_on_to_the_new_apiserver_cost_nobody_a_request(mixed: &Mixed) {
    let of_all = mixed.rerouted();
    let kinds = [
        (of_all.fresh(), 403),
        (of_all.token("invented"), 401),
        (of_all.token("tok-bob"), 200),
        (of_all.cert("alice"), 200),
        (of_all.cert("admin"), 200),
    ];
    let asking = kinds.iter().flat_map(|(client, code)| {
        // Four at once, fifty after each other.
        (0..4).map(async move |_| {
            let client = client.fresh().http2();
            for index in 0..50 {
                let client = match code {
                    200 => client.clone(),
                    _ => client.fresh(),
                };
                let answer = client.get(CONFIG_MAPS).await;
                assert_eq!(answer.code(), *code, "{index}: {}", answer.text());
            }
        })
    });
    join_all(asking).await;
    for proxy in [&mixed.at_old, &mixed.at_new] {
        assert_eq!(
            proxy.metric("kube_interop_proxy_refusals_total", &[]).await,
            0.0
        );
    }
}

async fn more_watches_than_an_apiserver_allows_streams_all_get_their_events(mixed: &Mixed) {
    // An apiserver of today allows 250 streams on a connection, and a proxy its clients as many.
    const CLIENTS: usize = 3;
    const EACH: usize = 200;
    let rerouted = mixed.rerouted();
    let watch = format!("{CONFIG_MAPS}?watch=true&resourceVersion=0");
    let mut clients = Vec::new();
    for client in [
        rerouted.cert("admin"),
        rerouted.token("tok-bob"),
        rerouted.cert("alice"),
    ] {
        clients.push(client.http2());
    }
    assert_eq!(clients.len(), CLIENTS);
    let mut watches: Vec<Streaming> = Vec::new();
    for client in &clients {
        let opened = (0..EACH).map(|_| client.open(&watch));
        watches.extend(join_all(opened).await);
    }
    assert!(watches.iter().all(|watch| watch.status == 200));
    let admin = mixed.rerouted().cert("admin");
    create(&admin, "seen-by-all").await;
    for (number, watch) in watches.iter_mut().enumerate() {
        loop {
            let event = watch.next_event(LONG).await;
            let event = event.unwrap_or_else(|why| panic!("{number}: {why:#}"));
            let event = event.unwrap_or_else(|| panic!("{number} ended"));
            if event["object"]["metadata"]["name"] == "seen-by-all" {
                break;
            }
        }
    }
    let all = (CLIENTS * EACH) as f64;
    let open = mixed
        .at_new
        .metric("kube_interop_proxy_long_running_requests", &[]);
    assert!(open.await >= all, "they are at the new apiserver");
}
