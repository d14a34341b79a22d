//! Where the local apiserver stores its built-in resources: in the etcd of the configuration, or in another one
//! (`--etcd-servers-overrides`). Revisions of different etcds must never be compared, so `etcd.otherResources` has to name
//! the latter. The proof is that of last bookmarks ([`crate::watches::prover`]).

use std::collections::BTreeSet;

use tokio::time::timeout;

use super::finding::Finding;
use super::probe::{Maker, body};
use super::{PATIENCE, apiserver, told};
use crate::client::Client;
use crate::config::Config;
use crate::kube::discovery::documents;
use crate::kube::gvr::{GroupVersion, Gvr, ResourceKind, resource_name};
use crate::watches::prover::{ApiServers, Prover};
use crate::watches::storage;

/// Nothing is said if the apiserver is too slow.
pub async fn check(config: &Config, maker: &Maker, etcd: &etcd_client::Client) -> Option<Finding> {
    timeout(PATIENCE, probe(config, maker, etcd)).await.ok()?
}

/// Asks the apiserver for one object of each resource that it lists in built-in groups, and etcd for the same.
async fn probe(config: &Config, maker: &Maker, etcd: &etcd_client::Client) -> Option<Finding> {
    let about = apiserver::about(config);
    let server = config.api_server.address;
    let Some(listed) = listed(&mut maker.client(server)).await else {
        return Some(told::no_discovery(about));
    };
    let prover = Prover(ApiServers::new(config, maker.clone()).ok()?);
    let (mut here, mut elsewhere, mut asked) = (false, BTreeSet::new(), BTreeSet::new());
    for resource in listed {
        // Else the resource is not among those that kube-apiserver has built in, or is in `etcd.otherResources`.
        let root = storage::root(&config.etcd, ResourceKind::BuiltIn, resource.borrow());
        // Not again for other versions, and groups that share its storage.
        let Some(root) = root.filter(|root| asked.insert(root.clone())) else {
            continue;
        };
        let asking = prover.is_stored(etcd.clone(), server, &root, &resource);
        match asking.await {
            Ok(Some(true)) => here = true,
            Ok(Some(false)) => {
                elsewhere.insert(resource_name(&resource.group, &resource.resource));
            }
            // It does not tell, or nothing is stored.
            Ok(None) | Err(_) => {}
        }
    }
    let names = Vec::from_iter(elsewhere).join(", ");
    match here {
        _ if names.is_empty() => None,
        true => Some(told::stores_elsewhere(about, names)),
        false => Some(told::stores_nothing_here(about)),
    }
}

/// What can be watched; `None`: it does not say which groups it has.
async fn listed(client: &mut Client) -> Option<Vec<Gvr>> {
    let groups = body(client, "/apis").await?;
    let mut versions = vec![GroupVersion::new("", "v1")];
    versions.extend(documents::listed(&groups).ok()?);
    let mut found = Vec::new();
    for of in &versions {
        let document = body(client, &of.path()).await;
        let version = document.and_then(|document| documents::resources(of, &document).ok());
        let resources = version.into_iter().flat_map(|version| version.resources);
        let watched = resources.filter(|it| it.verbs.iter().any(|verb| verb == "watch"));
        found.extend(watched.map(|resource| of.gvr(&resource.name)));
    }
    Some(found)
}
