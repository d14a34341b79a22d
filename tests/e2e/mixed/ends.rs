//! The new apiserver ends connections at random (`--goaway-chance`), and turns requests away while it shuts down
//! (`--shutdown-send-retry-after`): clients of either proxy do not notice.

use bytes::Bytes;
use tokio::task::JoinHandle;

use super::{CONFIG_MAPS, Mixed, config_map, create};
use crate::stopping::rebalancing::nothing_is_lost;
use testkit::client::Client;
use testkit::cluster::LONG;
use testkit::process::Signal;
use testkit::streaming::Response;
use testkit::wait::eventually;
use testkit::wire::{Pieces, Wire, request};

/// Marks the request that an apiserver waits for before it ends.
const HELD: &str = "held-back";

#[tokio::test]
async fn goaways_of_a_peer_cost_no_request() {
    let mixed = Mixed::with(&["--goaway-chance=0.02"], |options| options).await;
    let client = mixed.rerouted().cert("admin").http2();
    nothing_is_lost(&mixed.at_old, &client).await;
    assert_eq!(
        mixed
            .at_new
            .metric("kube_interop_proxy_refusals_total", &[])
            .await,
        0.0
    );
}

#[tokio::test]
async fn what_a_new_apiserver_turns_away_while_it_stops_the_old_one_serves() {
    let flags = [
        "--shutdown-send-retry-after",
        "--shutdown-delay-duration=2s",
    ];
    // Nobody finds out but by an answer.
    let mut mixed = Mixed::with(&flags, |options| {
        options.set("apiServer.probeInterval", "1h")
    })
    .await;
    let [_, at_new] = mixed.admins();
    let rerouted = mixed.rerouted().cert("admin");
    for (name, client) in [("before-1", &at_new), ("before-2", &rerouted)] {
        assert_eq!(mixed.reached(client).await[0].0, "new");
        create(client, name).await;
    }
    // A request that has begun holds it back.
    let direct = mixed.new.admin().fresh();
    let held = upload(&direct).await;
    eventually("the upload has begun", LONG, async || {
        !mixed.audits[1].1.received(HELD).is_empty()
    })
    .await;
    mixed.new.process().signal(Signal::Term);
    turns_away(&direct).await;

    let token = |client: &Client| client.token("tok-admin");
    let nobody = mixed.at_new.client(&mixed.ground.pki);
    let clients = [
        &at_new,
        &token(&nobody),
        &rerouted,
        &token(&mixed.rerouted()),
    ];
    for (number, client) in clients.into_iter().enumerate() {
        for (version, client) in [("1", client.http1()), ("2", client.http2())] {
            create(&client, &format!("during-{number}-{version}")).await;
            assert_eq!(mixed.reached(&client).await[0].0, "old");
        }
    }
    turns_away(&direct).await;
    let terminating = [("reason", "terminating")];
    let failovers = "kube_interop_proxy_failovers_total";
    // Its own proxy met it first, and has told the other.
    assert!(mixed.at_new.metric(failovers, &terminating).await >= 1.0);

    // Nobody is left: its own words.
    mixed.old.kill();
    let refused = at_new
        .request("POST", CONFIG_MAPS, config_map("after", "x"))
        .await;
    assert_eq!(refused.code(), 429, "{}", refused.text());
    assert_eq!(refused.header("retry-after"), "5");
    held.abort();
}

/// A write whose body does not end.
async fn upload(client: &Client) -> JoinHandle<anyhow::Result<Response>> {
    let mut wire = Wire::http1(client).await;
    let path = format!("{CONFIG_MAPS}?fieldManager={HELD}");
    let begun = Pieces::of([Bytes::from_static(b"{")]).unfinished();
    tokio::spawn(async move {
        wire.send("kubernetes.default.svc", request("POST", &path, begun))
            .await
    })
}

/// Waits until an apiserver that shuts down says so.
async fn turns_away(direct: &Client) {
    eventually("requests are turned away", LONG, async || {
        let answer = direct
            .fresh()
            .try_get(CONFIG_MAPS)
            .await
            .map_err(|error| format!("{error:#}"))?;
        let told = (answer.code(), answer.header("retry-after")) == (429, "5");
        told.then_some(()).ok_or(answer.text())
    })
    .await;
}
