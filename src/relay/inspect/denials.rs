//! When an apiserver's "no such resource" about what its discovery lists is true.
//!
//! An apiserver serves a resource at some forms of paths only: nobody can read a TokenReview. What it denies is in doubt
//! at first, because it may be another process than the one whose discovery was read. So its first denial of a form is
//! remembered. Once its discovery was read again since and still lists the resource, its denials of that form count.
//! A peer's proxy decides that about its own apiserver, and marks the answer.
//!
//! The client gets the answer when all initialized servers that list the resource deny it like this.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use hashbrown::HashMap;
use pingora_http::ResponseHeader;

use crate::kube::gvr::Gvr;
use crate::net::lock;
use crate::request::headers::{NOT_EXECUTED, OF_RESOURCE};
use crate::request::info::{PathForm, RequestInfo, Target};
use crate::routing::table::{DiscoveryReads, ServerKind, Snapshot};

/// Most denials that are remembered: more than there are resources times forms. Then all are forgotten.
const MOST: usize = 4096;

/// What servers have denied.
#[derive(Debug, Default)]
pub struct Denials(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The run of the local apiserver in which all of them were.
    epoch: u64,
    /// When each began.
    since: HashMap<Denial, Instant>,
}

/// A server denies all paths of one form of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Denial {
    server: SocketAddr,
    resource: Arc<Gvr>,
    form: PathForm,
}

impl Denials {
    /// Whether the denial of `server`, of a kind, counts. `answer`: its header, in which a peer's proxy says that of its own.
    /// Nothing counts about what nobody lists: discovery is read again then. `epoch`: the run of the local apiserver, with
    /// whether it is initialized.
    pub fn counts(
        &self,
        snapshot: &Snapshot,
        (epoch, is_initialized): (u64, bool),
        info: &RequestInfo<'_>,
        (server_kind, server): (ServerKind, SocketAddr),
        answer: &ResponseHeader,
    ) -> bool {
        let Target::Resource(resource) = &info.target else {
            return false;
        };
        let Some((name, holders)) = snapshot.holders(resource.into()) else {
            return false;
        };
        let reads = match server_kind {
            ServerKind::Proxied => return answer.headers.get(NOT_EXECUTED) == Some(&OF_RESOURCE),
            ServerKind::Native | ServerKind::Bare => snapshot.reads.get(&server).copied(),
            ServerKind::Local if holders.local && is_initialized => {
                let read = snapshot.local_read.filter(|(run, _)| *run == epoch);
                read.map(|(_, last)| DiscoveryReads { first: None, last })
            }
            ServerKind::Local => None,
        };
        let denial = Denial {
            server,
            resource: name.clone(),
            form: resource.form,
        };
        self.add(denial, epoch, reads, Instant::now())
    }

    /// A denial at `now`. `reads`: of the server's discovery, which lists the resource. Returns whether the denial counts.
    fn add(&self, denial: Denial, epoch: u64, reads: Option<DiscoveryReads>, now: Instant) -> bool {
        let mut known = lock(&self.0);
        if known.epoch != epoch || known.since.len() >= MOST {
            known.since.clear();
            known.epoch = epoch;
        }
        let since = known.since.entry(denial).or_insert(now);
        // What listed something else meanwhile may have been another process, which did not have the resource.
        if reads.and_then(|reads| reads.first) > Some(*since) {
            *since = now;
        }
        reads.is_some_and(|reads| reads.last > *since)
    }
}

/// Whether the path cannot be one of the listed resource, so that no server serves it.
pub fn is_no_path_of_it(snapshot: &Snapshot, info: &RequestInfo<'_>) -> bool {
    let Target::Resource(resource) = &info.target else {
        return false;
    };
    let listed = snapshot.holders(resource.into());
    listed.is_some_and(|(_, holders)| holders.excludes(resource.form))
}

/// Whether `denying`, whose denials count, are all initialized servers that list the resource; `local`: the local one, if it
/// is initialized. The proxy that a request was `rerouted` by asks the others.
pub fn are_all(
    snapshot: &Snapshot,
    local: Option<SocketAddr>,
    info: &RequestInfo<'_>,
    rerouted: bool,
    denying: &[SocketAddr],
) -> bool {
    let listed = info.gvr().and_then(|gvr| snapshot.holders(gvr));
    let Some((_, holders)) = listed.filter(|_| !denying.is_empty()) else {
        return false;
    };
    let denied_here = !holders.local || local.is_none_or(|local| denying.contains(&local));
    let targets = holders.targets.iter();
    let mut targets = targets.filter_map(|it| snapshot.servers.get(*it));
    let everything_known = snapshot.synced && snapshot.local_known && !snapshot.peer_unknown;
    denied_here
        && (rerouted
            || everything_known && targets.all(|server| denying.contains(&server.endpoint)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Method;

    use super::*;
    use crate::kube::gvr::GvrRef;
    use crate::request::info;

    fn denial(resource: &str, named: bool) -> Denial {
        let name = GvrRef {
            group: "authentication.k8s.io",
            version: "v1",
            resource,
            subresource: "",
        };
        Denial {
            server: ([10, 0, 0, 1], 6443).into(),
            resource: Arc::new(name.owned()),
            form: PathForm {
                named,
                ..PathForm::default()
            },
        }
    }

    #[test]
    fn a_denial_counts_when_discovery_was_read_after_the_first_of_its_form_and_process() {
        let (denials, start) = (Denials::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let add = |resource, named, epoch, read: Option<u64>, now| {
            let reads = read.map(|last| DiscoveryReads {
                first: None,
                last: at(last),
            });
            denials.add(denial(resource, named), epoch, reads, at(now))
        };
        assert!(!add("tokenreviews", true, 1, Some(0), 10), "read before");
        assert!(!add("tokenreviews", true, 1, Some(10), 11));
        assert!(!add("tokenreviews", true, 1, None, 12), "unknown");
        assert!(add("tokenreviews", true, 1, Some(11), 13));
        assert!(!add("tokenreviews", false, 1, Some(11), 13), "another form");
        assert!(!add("others", true, 1, Some(11), 13), "another resource");
        assert!(!add("tokenreviews", true, 2, Some(13), 14), "restarted");
        assert!(add("tokenreviews", true, 2, Some(15), 16));
    }

    #[test]
    fn what_a_peers_proxy_says_of_its_own_denial_counts_only_for_a_listed_resource() {
        let counts = |path, marked| {
            let listed = denial("tokenreviews", false).resource;
            let served = [Arc::unwrap_or_clone(listed)].into_iter().collect();
            let snapshot = Snapshot::new(true, Vec::new(), Some(&served), Arc::default());
            let server = ([10, 0, 0, 1], 6443).into();
            let info = info::read(&Method::GET, path, None);
            let mut answer = ResponseHeader::build(404, None).unwrap();
            if marked {
                answer.insert_header(NOT_EXECUTED, OF_RESOURCE).unwrap();
            }
            let server = (ServerKind::Proxied, server);
            Denials::default().counts(&snapshot, (1, true), &info, server, &answer)
        };
        assert!(counts("/apis/authentication.k8s.io/v1/tokenreviews", true));
        assert!(!counts(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            false
        ));
        assert!(!counts("/apis/authentication.k8s.io/v1/others", true));
        // A discovery document.
        assert!(!counts("/apis/authentication.k8s.io/v1", true));
    }

    #[test]
    fn a_denial_does_not_count_for_a_process_that_lists_something_else() {
        let (denials, start) = (Denials::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let add = |first, last, now| {
            let reads = DiscoveryReads {
                first: Some(at(first)),
                last: at(last),
            };
            denials.add(denial("things", false), 1, Some(reads), at(now))
        };
        assert!(!add(0, 5, 10));
        // It had restarted without the resource, and then with it again.
        assert!(!add(20, 25, 30));
        assert!(!add(20, 29, 31));
        assert!(add(20, 35, 36));
    }

    #[test]
    fn what_is_remembered_has_a_limit() {
        let (denials, now) = (Denials::default(), Instant::now());
        for number in 0..3 * MOST {
            denials.add(denial(&number.to_string(), false), 1, None, now);
            assert!(denials.0.lock().unwrap().since.len() <= MOST);
        }
    }
}
