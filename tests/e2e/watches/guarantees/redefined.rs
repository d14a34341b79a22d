//! A watch of a custom resource whose definition is removed and made anew while its apiserver is down.

use kube_interop_proxy::watches::frames::EventKind;
use serde_json::json;

use crate::routing::real_apiservers::LONGER;
use crate::watches::bookmarks::{Events, list_revision, watch_path};
use crate::watches::resources::WIDGETS;
use testkit::client::Client;
use testkit::kube::KubeApiServer;
use testkit::pair::Pair;
use testkit::proxy::Proxy;
use testkit::wait::eventually;

/// The watch, through A's proxy, and from where.
pub struct Redefined {
    admin: Client,
    from: i64,
    events: Events,
}

impl Redefined {
    /// It was told of an object, and may leave A's apiserver.
    pub async fn watch(pair: &mut Pair) -> Self {
        let servers = [&pair.a, &pair.b].map(KubeApiServer::admin);
        WIDGETS.define(pair.b.admin(), servers.into_iter()).await;
        let admin = pair.proxy_a.client(&pair.ground.pki).cert("admin");
        let path = WIDGETS.path();
        let from = list_revision(&admin, &path).await;
        let mut events = Events::open(&admin, &watch_path(&path, from)).await;
        WIDGETS.create(&admin, "old", json!({})).await;
        while !events.seen.iter().any(|(_, _, name)| name == "old") {
            assert_eq!(events.next().await, Some(true), "{:?}", events.seen);
        }
        until_widgets_are_proved(&mut pair.proxy_a).await;
        Self {
            admin,
            from,
            events,
        }
    }

    /// As soon as A serves the new definition.
    pub async fn create(&self, pair: &Pair) {
        pair.until_histories_are_known().await;
        eventually("it is served again", LONGER, async || {
            self.admin.get(&WIDGETS.path()).await.code() == 200
        })
        .await;
        WIDGETS.create(&self.admin, "new", json!({})).await;
    }

    /// Reads on as a client does that goes on from what it has seen last. A clean end is allowed: an apiserver ends the
    /// watches of a definition that is removed, a minute later.
    pub async fn assert_nothing_hidden(self) {
        let Self {
            admin,
            mut from,
            mut events,
        } = self;
        let path = WIDGETS.path();
        let mut seen = Vec::new();
        let mut is_listed = false;
        while seen.last().is_none_or(|name| name != "new") {
            let (before, is_open) = (events.seen.len(), events.next().await);
            for (kind, revision, name) in &events.seen[before..] {
                assert!(*revision >= from, "{:?}", events.seen);
                from = *revision;
                if *kind == EventKind::Change {
                    seen.push(name.clone());
                }
            }
            match is_open {
                Some(true) => {}
                Some(false) => events = Events::open(&admin, &watch_path(&path, from)).await,
                None => {
                    is_listed = true;
                    break;
                }
            }
        }
        match is_listed {
            true => assert!(seen.is_empty() || seen == ["old"], "{seen:?}"),
            false => assert_eq!(seen, ["old", "new"], "the deletion, and the new one"),
        }
    }
}

/// Where widgets are stored is proved: only then a watch of them may leave its server.
async fn until_widgets_are_proved(proxy: &mut Proxy) {
    let log = proxy.process().log().to_owned();
    eventually(
        "it is proved where widgets are stored",
        LONGER,
        async || {
            let log = std::fs::read_to_string(&log).unwrap();
            let mut of_widgets = log.lines().filter(|line| line.contains("/widgets/"));
            of_widgets.any(|line| line.contains("stored_here: Some(true), kind: Some("))
        },
    )
    .await;
}

/// Removes the definition of widgets, and makes it again.
pub async fn define_anew(admin: &Client) {
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.test";
    let removed = admin.request("DELETE", definition, "").await;
    assert_eq!(removed.code(), 200, "{}", removed.text());
    eventually("it is gone", LONGER, async || {
        admin.get(definition).await.code() == 404
    })
    .await;
    WIDGETS.define(admin, [admin].into_iter()).await;
}
