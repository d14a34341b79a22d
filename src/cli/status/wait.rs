//! Waits until the next node may be stopped: this server and enough others serve, everything is known of them, and
//! nothing has to be refused. Deciding is pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::fetch;
use crate::admin::document::{ResourceStatus, StatusDocument};
use crate::cli::text::{plain, plain_list};
use crate::cli::wait::until_nothing_lacks;
use crate::cli::{block_on, terminal};
use crate::config::joined;
use crate::kube::gvr::api_version;

const PAUSE: Duration = Duration::from_millis(500);

/// Asks the proxy at `admin` until nothing is lacking, at most for `timeout`.
pub(super) fn run(admin: &str, peers: Option<usize>, timeout: Duration) -> Result<bool, String> {
    let asking = until_nothing_lacks(timeout, PAUSE, async || match fetch(admin).await {
        Ok((_, document)) => lacking(&document, peers),
        Err(error) => vec![error],
    });
    block_on(asking).map_err(|_| format!("not within {timeout:?}"))?;
    terminal::say("nothing is lacking\n").map(|()| true)
}

/// What must still come true; empty: nothing. `peers`: so many others must serve; `None`: all that are known.
fn lacking(status: &StatusDocument, peers: Option<usize>) -> Vec<String> {
    let server = &status.server;
    let peers = peers.unwrap_or(status.peers.len());
    let mut lacking = Vec::new();
    if !server.ready {
        let why = joined(server.missing.iter().map(|it| plain(it)), "; ");
        lacking.push(format!("this server is not ready: {why}"));
    }
    let serving = status.peers.iter().filter(|it| it.ready && !it.unhealthy);
    let serving = serving.count();
    if serving < peers {
        lacking.push(format!("ready targets: {serving} of {peers}"));
    }
    let unknown = status.peers.iter().filter(|peer| peer.live && !peer.known);
    lacking.extend(unknown.map(|peer| format!("it is not known what {} serves", plain(&peer.id))));
    if !status.discovery.current {
        lacking.push("the discovery of the apiserver was not read yet".to_owned());
    }
    let sources = status.discovery.sources.iter();
    lacking.extend(sources.filter(|it| it.state != "read").map(|source| {
        let (servers, state) = (plain_list(&source.servers), plain(&source.state));
        format!("the discovery of {servers} is {state}")
    }));
    let claims = status.claims().map(plain);
    lacking.extend(claims.map(|it| format!("a second proxy claims the server ID of {it}")));
    let refused = |resource: &&ResourceStatus| !resource.local && resource.peers.is_empty();
    if let Some(refused) = group_versions(status.resources.iter().filter(refused)) {
        lacking.push(format!("no server that can be asked serves {refused}"));
    }
    lacking
}

/// Resources that only this server serves: they would be answered 503 if it stopped. `None`: there are none.
pub(super) fn only_here(status: &StatusDocument) -> Option<String> {
    if !status.peers.iter().any(|peer| peer.target) && !status.resources.is_empty() {
        return Some("everything".to_owned());
    }
    let only_here = |resource: &&ResourceStatus| resource.local && resource.peers.is_empty();
    group_versions(status.resources.iter().filter(only_here))
}

/// `autoscaling/v2 (3), apps/v1 (1)`
fn group_versions<'a>(resources: impl Iterator<Item = &'a ResourceStatus>) -> Option<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for resource in resources {
        let [group, version] = [&resource.group, &resource.version].map(|name| plain(name));
        *counts.entry(api_version(&group, &version)).or_default() += 1;
    }
    let texts = counts.iter().map(|(of, count)| format!("{of} ({count})"));
    (!counts.is_empty()).then(|| joined(texts, ", "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(change: impl FnOnce(&mut Value)) -> StatusDocument {
        let peer = |id| json!({"id": id, "live": true, "initialized": true, "target": true, "ready": true, "known": true});
        let resource = |name, local: bool, peers: &[&str]| json!({"group": "apps", "version": "v1", "resource": name, "local": local, "peers": peers});
        let mut status = json!({
            "server": {"ready": true},
            "discovery": {"current": true, "sources": [{"state": "read", "servers": ["b"]}]},
            "peers": [peer("b"), peer("c")],
            "resources": [resource("deployments", true, &["b", "c"]), resource("hpas", false, &["b"])],
        });
        change(&mut status);
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn nothing_is_lacking_where_all_serve_and_everything_is_known() {
        for peers in [None, Some(0), Some(1), Some(2)] {
            assert_eq!(lacking(&status(|_| {}), peers), Vec::<String>::new());
        }
        let more = lacking(&status(|_| {}), Some(3));
        assert_eq!(more, ["ready targets: 2 of 3"]);
        // Who stays away for good is dropped with `forget`.
        let absent = status(|it| it["peers"][1] = json!({"id": "c", "live": false}));
        assert_eq!(lacking(&absent, None), ["ready targets: 1 of 2"]);
        assert_eq!(lacking(&absent, Some(1)), Vec::<String>::new());
    }

    #[test]
    fn whatever_is_lacking_is_told() {
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 9] = [
            (
                |it| it["server"] = json!({"ready": false, "missing": ["stopping", "\u{1b}x"]}),
                "this server is not ready: stopping; \\u{1b}x",
            ),
            (
                |it| it["peers"][0]["ready"] = false.into(),
                "ready targets: 1 of 2",
            ),
            (
                |it| it["peers"][1]["unhealthy"] = true.into(),
                "ready targets: 1 of 2",
            ),
            (
                |it| it["peers"][1]["known"] = false.into(),
                "it is not known what c serves",
            ),
            (
                |it| it["discovery"]["current"] = false.into(),
                "the discovery of the apiserver was not read yet",
            ),
            (
                |it| it["discovery"]["sources"][0]["state"] = "failing".into(),
                "the discovery of b is failing",
            ),
            (
                |it| it["facts"] = json!({"claims": ["b/10.0.0.9:6443"]}),
                "a second proxy claims the server ID of b/10.0.0.9:6443",
            ),
            (
                |it| it["resources"][1]["peers"] = json!([]),
                "no server that can be asked serves apps/v1 (1)",
            ),
            // A document of which nothing can be read.
            (
                |it| *it = json!({"discovery": {"current": true}, "peers": [{"target": true, "ready": true}, {"target": true, "ready": true}]}),
                "this server is not ready: ",
            ),
        ];
        for (change, expected) in cases {
            assert_eq!(lacking(&status(change), Some(2)), [expected]);
        }
    }

    #[test]
    fn what_only_this_server_serves_is_told_by_group_version() {
        assert_eq!(only_here(&status(|_| {})), None);
        let alone = status(|it| it["resources"][0]["peers"] = json!([]));
        assert_eq!(only_here(&alone).as_deref(), Some("apps/v1 (1)"));
        let single = status(|it| it["peers"] = json!([]));
        assert_eq!(only_here(&single).as_deref(), Some("everything"));
    }
}
