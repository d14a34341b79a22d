//! Where the local apiserver stores its built-in resources: in the etcd of the configuration, or in another one
//! (`--etcd-servers-overrides`). Revisions of different etcds must never be compared, so `etcd.otherResources` has to name
//! the latter. The proof is that of last bookmarks ([`crate::watches::prover`]).

use std::collections::BTreeSet;

use tokio::time::timeout;

use super::apiserver;
use super::finding::Finding;
use super::http_probe::body;
use super::told;
use super::{Clients, PATIENCE};
use crate::client::Client;
use crate::config::Config;
use crate::kube::discovery::documents;
use crate::kube::gvr::{GroupVersion, ResourceKind};
use crate::watches::apiservers::ApiServers;
use crate::watches::prover::Prover;
use crate::watches::sample::WatchedResource;
use crate::watches::storage;

/// Names, as `etcd.otherResources` has them.
#[derive(Debug, Default)]
struct Stored {
    here: BTreeSet<String>,
    elsewhere: BTreeSet<String>,
    unknown: BTreeSet<String>,
}

/// `None`: the apiserver does not tell what it serves.
pub async fn check(
    config: &Config,
    clients: &Clients,
    etcd: &etcd_client::Client,
) -> Option<Finding> {
    let stored = timeout(PATIENCE, probe(config, clients, etcd)).await;
    Some(finding(config, &stored.ok()??))
}

/// Asks the apiserver for one object of each resource that it lists in built-in groups, and etcd for the same.
async fn probe(config: &Config, clients: &Clients, etcd: &etcd_client::Client) -> Option<Stored> {
    let server = config.api_server.address;
    let maker = &clients.apiserver;
    let listed = listed(&mut maker.client(server)).await?;
    let prover = Prover(ApiServers::new(config, &clients.credentials, maker.clone()).ok()?);
    let (mut stored, mut asked) = (Stored::default(), BTreeSet::new());
    for resource in listed {
        // Else the resource is not among those that kube-apiserver has built in, or is in `etcd.otherResources`.
        let root = storage::root(&config.etcd, ResourceKind::BuiltIn, &resource.request(""));
        // Not again for other versions, and groups that share its storage.
        let Some(root) = root.filter(|root| asked.insert(root.clone())) else {
            continue;
        };
        let asking = prover.is_stored(etcd.clone(), server, &root, &resource);
        let names = match asking.await {
            Ok(Some(true)) => &mut stored.here,
            Ok(Some(false)) => &mut stored.elsewhere,
            Ok(None) | Err(_) => &mut stored.unknown,
        };
        names.insert(name(&resource));
    }
    Some(stored)
}

fn finding(config: &Config, stored: &Stored) -> Finding {
    let about = apiserver::about(config);
    let names = |names: &BTreeSet<String>| Vec::from_iter(names.iter().cloned()).join(", ");
    let Stored {
        here,
        elsewhere,
        unknown,
    } = stored;
    match (here.is_empty(), elsewhere.is_empty(), unknown.is_empty()) {
        (true, false, _) => told::stores_nothing_here(about),
        (false, false, _) => told::stores_elsewhere(about, names(elsewhere)),
        (_, true, true) => told::stores_here(about),
        (_, true, false) => told::storage_unknown(about, names(unknown)),
    }
}

fn name(resource: &WatchedResource) -> String {
    match &*resource.group {
        "" => resource.resource.to_string(),
        group => format!("{}.{group}", resource.resource),
    }
}

/// What can be watched.
async fn listed(client: &mut Client) -> Option<Vec<WatchedResource>> {
    let groups = body(client, "/apis").await?;
    let mut versions = vec![GroupVersion {
        group: String::new(),
        version: "v1".to_owned(),
    }];
    versions.extend(documents::listed(&groups).ok()?);
    let mut found = Vec::new();
    for of in &versions {
        let document = body(client, &of.path()).await;
        let version = document.and_then(|document| documents::resources(of, &document).ok());
        let resources = version.into_iter().flat_map(|version| version.resources);
        let watched = resources.filter(|it| it.verbs.iter().any(|verb| verb == "watch"));
        found.extend(watched.map(|resource| WatchedResource {
            group: (&*of.group).into(),
            version: (&*of.version).into(),
            resource: (&*resource.name).into(),
        }));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(here: usize, elsewhere: &[&str], unknown: &[&str]) -> String {
        let config = crate::config::parse(include_str!("../../../config.example.yaml")).unwrap();
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let here = (0..here).map(|number| number.to_string()).collect();
        let (elsewhere, unknown) = (set(elsewhere), set(unknown));
        let stored = Stored {
            here,
            elsewhere,
            unknown,
        };
        finding(&config, &stored).to_string()
    }

    #[test]
    fn what_is_elsewhere_is_named() {
        assert!(said(5, &[], &[]).starts_with("ok"));
        let line = said(5, &["events", "leases.coordination.k8s.io"], &["pods"]);
        assert!(
            line.contains("in another etcd: events, leases.coordination.k8s.io; do: name them in"),
            "{line}"
        );
        assert!(said(0, &["events"], &[]).contains("stores nothing in the etcd"));
        assert!(said(5, &[], &["pods"]).contains("does not tell where it stores pods"));
    }
}
