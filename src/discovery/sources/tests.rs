use std::sync::Arc;

use super::*;
use crate::discovery::peer_discovery::{PeerDiscovery, PeerListing};
use crate::kube::discovery::model::{CURRENT, Kind, Resource, Version};
use crate::kube::gvr::GroupVersion;
use crate::routing::table::things;

const EVERY: Duration = Duration::from_secs(60);
const LOCAL: &[(&str, &str)] = &[("", "v1")];
const MORE: &[(&str, &str)] = &[("", "v1"), ("batch", "v1")];

fn server(id: &str, version: &str, target: bool, served: &[(&str, &str)]) -> Server {
    let last = id.bytes().last().unwrap_or(0);
    Server {
        endpoint: ([10, 0, 0, last], 6443).into(),
        ..Server::listing(id, Some(version), target, served)
    }
}

fn plan(sources: &mut Sources, servers: &[Server]) {
    sources.plan(servers, &Arc::new(things(LOCAL)), Instant::now());
}

fn of(group: &str, version: &str) -> GroupVersion {
    GroupVersion {
        group: group.to_owned(),
        version: version.to_owned(),
    }
}

/// A server's documents.
fn cache(group_versions: &[(&str, &str)]) -> DocumentCache {
    let version = |(group, version): &(&str, &str)| {
        let kind = Kind {
            kind: "Thing".to_owned(),
            ..Kind::default()
        };
        let things = Resource {
            name: "things".to_owned(),
            singular_resource: "thing".to_owned(),
            response_kind: kind,
            ..Resource::default()
        };
        let document = Version {
            name: (*version).to_owned(),
            resources: vec![things],
            freshness: CURRENT.to_owned(),
        };
        (of(group, version), document)
    };
    let mut cache = DocumentCache::default();
    cache.versions = group_versions.iter().map(version).collect();
    cache
}

/// A job that has read this.
fn with(job: ReadJob, cache: DocumentCache) -> ReadJob {
    ReadJob { cache, ..job }
}

/// Wanted forms of OpenAPI.
fn forms<const N: usize>(forms: [OpenApiFormat; N]) -> BTreeSet<OpenApiFormat> {
    forms.into()
}

fn listed(sources: &Sources, group: &str, version: &str) -> PeerListing {
    let peer_discovery = PeerDiscovery {
        others: sources.others(),
        ..PeerDiscovery::default()
    };
    peer_discovery.lists(group, version)
}

/// The singular name: only a server's own document has it.
fn singular(sources: &Sources, group: &str, version: &str) -> String {
    let others = sources.others();
    let version = others.version(group, version).unwrap();
    version.resources[0].singular_resource.clone()
}

fn planned(servers: Vec<Server>) -> Sources {
    let mut sources = Sources::new(EVERY, 0);
    plan(&mut sources, &servers);
    sources
}

fn read(sources: &mut Sources, group_versions: &[(&str, &str)]) {
    let job = sources.next_job(Instant::now()).expect("something to read");
    sources.done(with(job, cache(group_versions)), None, Instant::now());
}

#[tokio::test(start_paused = true)]
async fn where_all_list_the_same_nobody_is_asked() {
    let mut sources = planned(vec![server("b", "v1.36.0", true, LOCAL)]);
    assert!(sources.is_empty() && sources.next_due().is_none());
    assert!(sources.next_job(Instant::now()).is_none());
    assert_eq!(sources.others(), Document::default());
}

#[tokio::test(start_paused = true)]
async fn before_a_document_is_read_its_names_are_listed_as_stale() {
    let mut sources = planned(vec![server("b", "v1.36.0", true, MORE)]);
    assert_eq!(listed(&sources, "batch", "v1"), PeerListing::Stale);
    read(&mut sources, MORE);
    assert_eq!(listed(&sources, "batch", "v1"), PeerListing::Fresh);
    assert_eq!(listed(&sources, "", "v1"), PeerListing::No);
    assert_eq!(singular(&sources, "batch", "v1"), "thing");
}

#[tokio::test(start_paused = true)]
async fn one_of_equal_servers_is_asked_and_all_are_asked_anew_after_the_interval() {
    let servers = ["b", "c", "d"].map(|id| server(id, "v1.36.0", true, MORE));
    let mut sources = planned(servers.into());
    read(&mut sources, MORE);
    assert!(sources.next_job(Instant::now()).is_none());
    let due = sources.next_due().unwrap();
    assert!(due >= Instant::now() + EVERY / 2 && due <= Instant::now() + EVERY);
    tokio::time::advance(EVERY).await;
    assert!(sources.next_job(Instant::now()).is_some());
    assert!(sources.next_job(Instant::now()).is_none(), "it is asked");
}

#[tokio::test(start_paused = true)]
async fn what_was_read_stays_stale_when_the_server_is_killed_and_goes_with_its_record() {
    let mut sources = planned(vec![server("b", "v1.36.0", true, MORE)]);
    read(&mut sources, MORE);
    let dead = server("b", "v1.36.0", false, MORE);
    plan(&mut sources, &[dead]);
    assert_eq!(listed(&sources, "batch", "v1"), PeerListing::Stale);
    assert_eq!(singular(&sources, "batch", "v1"), "thing");
    tokio::time::advance(EVERY * 2).await;
    assert!(
        sources.next_job(Instant::now()).is_none(),
        "nobody is there"
    );
    plan(&mut sources, &[]);
    assert_eq!(sources.others(), Document::default());
}

#[tokio::test(start_paused = true)]
async fn a_dead_server_that_was_never_asked_is_listed_by_name() {
    let sources = planned(vec![server("b", "v1.36.0", false, MORE)]);
    assert_eq!(listed(&sources, "batch", "v1"), PeerListing::Stale);
    assert_eq!(singular(&sources, "batch", "v1"), "");
    assert_eq!(sources.next_due(), None);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_back_is_asked_at_once() {
    let mut sources = planned(vec![server("b", "v1.36.0", true, MORE)]);
    read(&mut sources, MORE);
    for (target, asked) in [(false, false), (true, true)] {
        let now = server("b", "v1.36.0", target, MORE);
        plan(&mut sources, &[now]);
        assert_eq!(sources.next_job(Instant::now()).is_some(), asked);
    }
}

#[tokio::test(start_paused = true)]
async fn another_set_or_version_is_asked_for_and_what_was_read_stays_meanwhile() {
    let other: &[(&str, &str)] = &[("", "v1"), ("batch", "v1"), ("batch", "v2")];
    for changed in [
        server("b", "v1.36.1", true, MORE),
        server("b", "v1.36.0", true, other),
    ] {
        let mut sources = planned(vec![server("b", "v1.36.0", true, MORE)]);
        read(&mut sources, MORE);
        plan(&mut sources, &[changed]);
        assert_eq!(listed(&sources, "batch", "v1"), PeerListing::Fresh);
        assert!(sources.next_job(Instant::now()).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_local_apiserver_begins_to_lack_is_asked_for() {
    let servers = vec![server(
        "b",
        "v1.36.0",
        true,
        &[("", "v1"), ("x", "v1"), ("y", "v1")],
    )];
    let before = Arc::new(things(&[("", "v1"), ("x", "v1")]));
    let mut sources = Sources::new(EVERY, 0);
    sources.plan(&servers, &before, Instant::now());
    read(&mut sources, &[("y", "v1")]);
    plan(&mut sources, &servers);
    assert_eq!(listed(&sources, "x", "v1"), PeerListing::Stale);
    assert_eq!(listed(&sources, "y", "v1"), PeerListing::Fresh);
    let job = sources.next_job(Instant::now()).unwrap();
    assert_eq!(
        job.want.group_versions,
        [of("x", "v1"), of("y", "v1")].into()
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_keeps_what_was_read_and_the_next_server_is_asked_at_once() {
    let servers = ["b", "c"].map(|id| server(id, "v1.36.0", true, MORE));
    let mut sources = planned(servers.into());
    read(&mut sources, MORE);
    tokio::time::advance(EVERY).await;
    let mut asked = Vec::new();
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let due = sources.next_due().unwrap();
        let pause = due.saturating_duration_since(Instant::now());
        pauses.push(pause);
        tokio::time::advance(pause).await;
        let job = sources.next_job(Instant::now()).unwrap();
        asked.push(job.address);
        sources.done(job, Some("refused".to_owned()), Instant::now());
        assert_eq!(listed(&sources, "batch", "v1"), PeerListing::Fresh);
    }
    assert_ne!(asked[0], asked[1]);
    assert_eq!(pauses[..2], [Duration::ZERO; 2]);
    assert!(
        pauses[2] > Duration::ZERO && pauses[8] > pauses[2],
        "{pauses:?}"
    );
    assert!(pauses.iter().all(|pause| *pause <= EVERY), "{pauses:?}");
    let status = sources.status();
    assert_eq!((&*status[0].state, status[0].undescribed), ("failing", 0));
    assert_eq!(status[0].error.as_deref(), Some("refused"));
}

#[tokio::test(start_paused = true)]
async fn a_document_that_lacks_what_its_server_serves_is_asked_for_again() {
    let mut sources = planned(vec![server("b", "v1.36.0", true, MORE)]);
    read(&mut sources, &[]);
    assert_eq!(listed(&sources, "batch", "v1"), PeerListing::Stale);
    let status = sources.status();
    assert_eq!((&*status[0].state, status[0].undescribed), ("failing", 1));
    assert!(sources.next_due().unwrap() <= Instant::now() + FIRST_PAUSE * 2);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_one_server_does_not_describe_is_described_by_another() {
    let servers = vec![
        server("b", "v1.36.0", true, MORE),
        server("c", "v1.35.0", true, MORE),
    ];
    let mut sources = planned(servers);
    read(&mut sources, &[]);
    read(&mut sources, MORE);
    assert_eq!(listed(&sources, "batch", "v1"), PeerListing::Fresh);
    assert_eq!(singular(&sources, "batch", "v1"), "thing");
}

#[tokio::test(start_paused = true)]
async fn openapi_is_there_when_all_were_asked() {
    let servers = vec![
        server("b", "v1.36.0", true, &[("x", "v1"), ("y", "v1")]),
        server("c", "v1.35.0", true, &[("x", "v1")]),
    ];
    let mut sources = planned(servers);
    sources.want(&forms([OpenApiFormat::V3Index]), Instant::now());
    let wanted = std::iter::from_fn(|| sources.next_job(Instant::now()));
    let wanted: Vec<_> = wanted.map(|job| job.want.openapi).collect();
    assert_eq!(wanted, [(); 2].map(|()| forms([OpenApiFormat::V3Index])));
    let found = sources.openapi(&forms([OpenApiFormat::V3Index]));
    assert!(found.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_form_that_is_wanted_later_is_asked_for_at_once() {
    let mut sources = planned(vec![server("b", "v1.36.0", true, MORE)]);
    read(&mut sources, MORE);
    sources.want(&forms([]), Instant::now());
    assert!(sources.next_job(Instant::now()).is_none());
    sources.want(&forms([OpenApiFormat::V2Json]), Instant::now());
    let job = sources.next_job(Instant::now()).unwrap();
    assert_eq!(job.want.openapi, forms([OpenApiFormat::V2Json]));
    // It cannot be had: rather without it than no answer.
    sources.done(job, Some("refused".to_owned()), Instant::now());
    let found = sources.openapi(&forms([OpenApiFormat::V2Json]));
    assert_eq!(found[&OpenApiFormat::V2Json].len(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_changes_while_a_server_is_asked_is_asked_for_afterwards() {
    let mut sources = planned(vec![server("b", "v1.36.0", true, MORE)]);
    let job = sources.next_job(Instant::now()).unwrap();
    sources.want(&forms([OpenApiFormat::V3Index]), Instant::now());
    assert!(sources.next_job(Instant::now()).is_none());
    sources.done(with(job, cache(MORE)), None, Instant::now());
    assert_eq!(listed(&sources, "batch", "v1"), PeerListing::Fresh);
    let job = sources.next_job(Instant::now()).unwrap();
    assert_eq!(job.want.openapi, forms([OpenApiFormat::V3Index]));
}

#[tokio::test(start_paused = true)]
async fn an_answer_for_a_class_that_is_gone_is_nobodys() {
    let mut sources = planned(vec![server("b", "v1.36.0", true, MORE)]);
    let job = sources.next_job(Instant::now()).unwrap();
    plan(&mut sources, &[]);
    sources.done(with(job, cache(MORE)), None, Instant::now());
    assert!(sources.is_empty());
    assert_eq!(sources.others(), Document::default());
}

mod properties {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::kube::gvr::Gvr;

    const GROUPS: [&str; 4] = ["", "apps", "batch", "x"];

    fn served() -> impl Strategy<Value = ServedSet> {
        let [groups, versions] = [&GROUPS[..], &["v1", "v2"]].map(proptest::sample::select);
        let [resources, subresources] = [&["jobs", "things"], &["", "status"]]
            .map(|names| proptest::sample::select(&names[..]));
        let gvr = (groups, versions, resources, subresources).prop_map(|it| Gvr {
            group: it.0.to_owned(),
            version: it.1.to_owned(),
            resource: it.2.to_owned(),
            subresource: it.3.to_owned(),
        });
        proptest::collection::btree_set(gvr, 0..12)
    }

    /// Served set, whether it can be asked, its version, and whether its documents can be read.
    fn servers() -> impl Strategy<Value = Vec<(ServedSet, bool, u8, bool)>> {
        proptest::collection::vec((served(), any::<bool>(), 0..2_u8, any::<bool>()), 0..5)
    }

    /// Fresh documents of these group versions.
    fn documents(
        all: &ServedSet,
        wanted: &BTreeSet<GroupVersion>,
    ) -> BTreeMap<GroupVersion, Version> {
        let mut documents = BTreeMap::new();
        for group in by_name(all).groups {
            for version in &group.versions {
                let of = of(group.name(), &version.name);
                let freshness = CURRENT.to_owned();
                if wanted.contains(&of) {
                    documents.insert(
                        of,
                        Version {
                            freshness,
                            ..version.clone()
                        },
                    );
                }
            }
        }
        documents
    }

    proptest! {
        #[test]
        fn whatever_can_be_read_nothing_that_anybody_lists_vanishes(local in served(), of_servers in servers()) {
            let servers = of_servers.iter().enumerate().map(|(index, (set, target, minor, _))| Server {
                served: Some(Arc::new(set.clone())),
                ..server(&format!("s{index}"), &format!("v1.{minor}.0"), *target, &[])
            });
            let servers: Vec<_> = servers.collect();
            let mut sources = Sources::new(EVERY, 0);
            sources.plan(&servers, &Arc::new(local.clone()), Instant::now());
            let all: ServedSet = of_servers.iter().flat_map(|(set, ..)| set).cloned().collect();
            let lacking: ServedSet = all.difference(&local).cloned().collect();
            prop_assert_eq!(&sources.others().served(), &lacking);
            let mut readable = of_servers.iter().map(|(.., readable)| *readable).cycle();
            let mut described = BTreeSet::new();
            for _ in 0..of_servers.len() {
                let Some(job) = sources.next_job(Instant::now()) else { break };
                if readable.next() == Some(true) {
                    let mut cache = DocumentCache::default();
                    cache.versions = documents(&all, &job.want.group_versions);
                    described.extend(job.want.group_versions.clone());
                    sources.done(with(job, cache), None, Instant::now());
                } else {
                    sources.done(job, Some("broken".to_owned()), Instant::now() + EVERY);
                }
            }
            let others = sources.others();
            prop_assert_eq!(&others.served(), &lacking);
            // Fresh is what somebody described who can be asked.
            for group in &others.groups {
                for version in &group.versions {
                    prop_assert_eq!(!version.is_stale(), described.contains(&of(group.name(), &version.name)));
                }
            }
        }
    }
}
