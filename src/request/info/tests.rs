use std::borrow::Cow;

use http::Method;
use proptest::prelude::*;

use super::*;
use crate::kube::gvr::GroupVersion;

/// One line for a reading: verb, group/version, resource/subresource, then what else is known.
fn line(info: &RequestInfo<'_>) -> String {
    let mut line = match &info.target {
        Target::Other => "other".to_owned(),
        Target::Discovery(discovery) => discovery_line(discovery),
        Target::Resource(resource) => resource_line(info.verb, resource),
    };
    if !matches!(info.target, Target::Resource(_)) {
        assert_eq!(info.verb, Verb::Other, "{line}");
    }
    if info.long_running {
        line.push_str(" (long)");
    } else if info.is_unlimited() {
        line.push_str(" (unlimited)");
    }
    line
}

fn discovery_line(discovery: &DiscoveryDocument) -> String {
    let of = |gv: &GroupVersion| format!("{}/{}", gv.group, gv.version);
    match discovery {
        DiscoveryDocument::Versions => "core versions".to_owned(),
        DiscoveryDocument::Groups => "groups".to_owned(),
        DiscoveryDocument::Group(group) => format!("group {group}"),
        DiscoveryDocument::Resources(gv) => format!("resources of {}", of(gv)),
        DiscoveryDocument::OpenApiV2 => "openapi v2".to_owned(),
        DiscoveryDocument::OpenApiV3 => "openapi v3".to_owned(),
        DiscoveryDocument::OpenApiV3Version(gv) => format!("openapi v3 of {}", of(gv)),
    }
}

fn resource_line(verb: Verb, resource: &ResourceRequest<'_>) -> String {
    let mut line = format!(
        "{verb:?} {}/{} {}",
        resource.group, resource.version, resource.resource
    );
    for (before, part) in [
        ("/", &resource.subresource),
        (" in ", &resource.namespace),
        (" named ", &resource.name),
    ] {
        if !part.is_empty() {
            line.push_str(before);
            line.push_str(part);
        }
    }
    line
}

fn read_target<'a>(method: &str, target: &'a str) -> RequestInfo<'a> {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    match target.split_once('?') {
        Some((path, query)) => read(&method, path, Some(query)),
        None => read(&method, target, None),
    }
}

type Case = (&'static str, &'static str, &'static str, &'static str);

fn check(cases: &[Case]) {
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|(name, method, target, expected)| {
            let got = line(&read_target(method, target));
            (got != *expected).then(|| format!("{name}: {method} {target}: got `{got}`"))
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[rustfmt::skip]
#[test]
fn objects_and_collections_are_read_as_requestinfo_reads_them() {
    check(&[
        ("kubectl get pods", "GET", "/api/v1/namespaces/default/pods?limit=500", "List /v1 pods in default"),
        ("kubectl get pods -A", "GET", "/api/v1/pods?limit=500", "List /v1 pods"),
        ("kubectl get pod", "GET", "/api/v1/namespaces/default/pods/web-0", "Get /v1 pods in default named web-0"),
        ("kubectl get node", "GET", "/api/v1/nodes/worker-1", "Get /v1 nodes named worker-1"),
        ("kubectl create deployment", "POST", "/apis/apps/v1/namespaces/default/deployments?fieldManager=kubectl-create", "Create apps/v1 deployments in default"),
        ("kubectl replace", "PUT", "/apis/apps/v1/namespaces/default/deployments/web", "Update apps/v1 deployments in default named web"),
        ("server-side apply", "PATCH", "/apis/apps/v1/namespaces/default/deployments/web?fieldManager=kubectl&force=true", "Patch apps/v1 deployments in default named web"),
        ("kubectl delete", "DELETE", "/api/v1/namespaces/default/configmaps/settings", "Delete /v1 configmaps in default named settings"),
        ("HEAD of an object is get", "HEAD", "/api/v1/nodes/worker-1", "Get /v1 nodes named worker-1"),
        ("HEAD of a collection is list", "HEAD", "/api/v1/nodes", "List /v1 nodes"),
        ("OPTIONS has no verb", "OPTIONS", "/api/v1/nodes", "Other /v1 nodes"),
        ("an unknown method has no verb", "BREW", "/api/v1/nodes/a", "Other /v1 nodes named a"),
        ("methods are case-sensitive", "get", "/api/v1/nodes", "Other /v1 nodes"),
        ("POST to a name is create", "POST", "/api/v1/namespaces/a/pods/b", "Create /v1 pods in a named b"),
        ("garbage collector reads an owner", "GET", "/apis/apps/v1/namespaces/default/replicasets/web-5d78c9869d", "Get apps/v1 replicasets in default named web-5d78c9869d"),
        ("garbage collector watches metadata", "GET", "/apis/batch/v1/jobs?allowWatchBookmarks=true&resourceVersion=670&timeout=8m26s&timeoutSeconds=506&watch=true", "Watch batch/v1 jobs (long)"),
        ("namespace controller lists what is left", "GET", "/apis/apps/v1/namespaces/gone/controllerrevisions", "List apps/v1 controllerrevisions in gone"),
        ("namespace controller deletes all of a kind", "DELETE", "/apis/apps/v1/namespaces/gone/controllerrevisions", "DeleteCollection apps/v1 controllerrevisions in gone"),
        ("a field selector leaves it a collection", "DELETE", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Db", "DeleteCollection /v1 pods in a"),
        ("lease renewal", "PUT", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/worker-1?timeout=10s", "Update coordination.k8s.io/v1 leases in kube-node-lease named worker-1"),
        ("custom resources", "GET", "/apis/example.com/v1alpha1/namespaces/a/widgets?labelSelector=a%3Db", "List example.com/v1alpha1 widgets in a"),
        ("cluster-scoped custom resource", "GET", "/apis/example.com/v1alpha1/gizmos/g", "Get example.com/v1alpha1 gizmos named g"),
        ("custom resource definitions", "GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com", "Get apiextensions.k8s.io/v1 customresourcedefinitions named widgets.example.com"),
        ("kubectl auth can-i", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "Create authorization.k8s.io/v1 selfsubjectaccessreviews"),
        ("local access review", "POST", "/apis/authorization.k8s.io/v1/namespaces/a/localsubjectaccessreviews", "Create authorization.k8s.io/v1 localsubjectaccessreviews in a"),
        ("token review", "POST", "/apis/authentication.k8s.io/v1/tokenreviews", "Create authentication.k8s.io/v1 tokenreviews"),
        ("component statuses", "GET", "/api/v1/componentstatuses", "List /v1 componentstatuses"),
        ("a resource nobody serves", "GET", "/apis/nonsense.example/v1/things", "List nonsense.example/v1 things"),
        ("a group below /api is a version there", "GET", "/api/apps/v1/deployments", "Get /apps v1 named deployments"),
        ("a slash at the end says nothing", "GET", "/api/v1/namespaces/a/pods/", "List /v1 pods in a"),
        ("a slash after a name says nothing", "GET", "/api/v1/namespaces/a/pods/b/", "Get /v1 pods in a named b"),
        ("raw non-ASCII names", "GET", "/api/v1/namespaces/a/pods/münchen", "Get /v1 pods in a named münchen"),
    ]);
}

#[rustfmt::skip]
#[test]
fn namespaces_are_resources_and_hold_resources() {
    check(&[
        ("list", "GET", "/api/v1/namespaces", "List /v1 namespaces"),
        ("list with a slash", "GET", "/api/v1/namespaces/", "List /v1 namespaces"),
        ("watch", "GET", "/api/v1/namespaces?watch=1", "Watch /v1 namespaces (long)"),
        ("create", "POST", "/api/v1/namespaces", "Create /v1 namespaces"),
        ("delete all", "DELETE", "/api/v1/namespaces", "DeleteCollection /v1 namespaces"),
        ("one is in itself", "GET", "/api/v1/namespaces/a", "Get /v1 namespaces in a named a"),
        ("one, with a slash", "DELETE", "/api/v1/namespaces/a/", "Delete /v1 namespaces in a named a"),
        ("status is its own", "PATCH", "/api/v1/namespaces/a/status", "Patch /v1 namespaces/status in a named a"),
        ("finalize is its own", "PUT", "/api/v1/namespaces/a/finalize", "Update /v1 namespaces/finalize in a named a"),
        ("anything else is inside", "GET", "/api/v1/namespaces/a/statuses", "List /v1 statuses in a"),
        ("a namespace called status", "GET", "/api/v1/namespaces/status/pods", "List /v1 pods in status"),
        ("a namespace called namespaces", "GET", "/api/v1/namespaces/namespaces", "Get /v1 namespaces in namespaces named namespaces"),
        ("namespaces inside of a namespace", "GET", "/api/v1/namespaces/a/namespaces/b/c", "Get /v1 namespaces/c in a named b"),
        ("in another group", "GET", "/apis/apps/v1/namespaces/a", "Get apps/v1 namespaces in a named a"),
        ("status in another group", "GET", "/apis/apps/v1/namespaces/a/status", "Get apps/v1 namespaces/status in a named a"),
        ("a resource called proxy", "GET", "/api/v1/namespaces/a/proxy/b", "Get /v1 proxy in a named b"),
        ("a tail after its own subresource", "GET", "/api/v1/namespaces/a/status/b/c", "Get /v1 namespaces/status in a named a"),
    ]);
}

#[rustfmt::skip]
#[test]
fn subresources_are_read_and_some_are_long_running() {
    check(&[
        ("kubectl scale", "PATCH", "/apis/apps/v1/namespaces/a/deployments/web/scale", "Patch apps/v1 deployments/scale in a named web"),
        ("status", "PUT", "/apis/example.com/v1/namespaces/a/widgets/w/status", "Update example.com/v1 widgets/status in a named w"),
        ("resize", "PATCH", "/api/v1/namespaces/a/pods/b/resize", "Patch /v1 pods/resize in a named b"),
        ("eviction", "POST", "/api/v1/namespaces/a/pods/b/eviction", "Create /v1 pods/eviction in a named b"),
        ("binding", "POST", "/api/v1/namespaces/a/pods/b/binding", "Create /v1 pods/binding in a named b"),
        ("ephemeral containers", "PATCH", "/api/v1/namespaces/a/pods/b/ephemeralcontainers", "Patch /v1 pods/ephemeralcontainers in a named b"),
        ("token", "POST", "/api/v1/namespaces/a/serviceaccounts/default/token", "Create /v1 serviceaccounts/token in a named default"),
        ("approval", "PUT", "/apis/certificates.k8s.io/v1/certificatesigningrequests/x/approval", "Update certificates.k8s.io/v1 certificatesigningrequests/approval named x"),
        ("exec", "POST", "/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true&tty=true", "Create /v1 pods/exec in a named b (long)"),
        ("exec over WebSocket", "GET", "/api/v1/namespaces/a/pods/b/exec?command=sh", "Get /v1 pods/exec in a named b (long)"),
        ("attach", "POST", "/api/v1/namespaces/a/pods/b/attach?stdout=true", "Create /v1 pods/attach in a named b (long)"),
        ("port-forward", "POST", "/api/v1/namespaces/a/pods/b/portforward", "Create /v1 pods/portforward in a named b (long)"),
        ("log", "GET", "/api/v1/namespaces/a/pods/b/log?container=c", "Get /v1 pods/log in a named b (unlimited)"),
        ("log that is followed", "GET", "/api/v1/namespaces/a/pods/b/log?container=c&follow=true", "Get /v1 pods/log in a named b (long)"),
        ("log that is followed, as a flag", "GET", "/api/v1/namespaces/a/pods/b/log?follow", "Get /v1 pods/log in a named b (long)"),
        ("log that is not followed, in words", "GET", "/api/v1/namespaces/a/pods/b/log?follow=False", "Get /v1 pods/log in a named b (unlimited)"),
        ("a tail is no part of it", "GET", "/api/v1/namespaces/a/pods/b/log/extra", "Get /v1 pods/log in a named b (unlimited)"),
        ("names invented by aggregated APIs", "GET", "/apis/custom.metrics.k8s.io/v1beta1/namespaces/a/pods/*/http_requests", "Get custom.metrics.k8s.io/v1beta1 pods/http_requests in a named *"),
        ("tails invented by aggregated APIs", "GET", "/apis/subresources.example.io/v1/namespaces/a/machines/m/portforward/8080/tcp", "Get subresources.example.io/v1 machines/portforward in a named m (long)"),
        ("a subresource called watch", "GET", "/api/v1/namespaces/a/pods/b/watch", "Get /v1 pods/watch in a named b"),
    ]);
}

#[rustfmt::skip]
#[test]
fn proxy_subresources_keep_their_tails_to_themselves() {
    check(&[
        ("a node", "GET", "/api/v1/nodes/worker-1/proxy/stats/summary", "Get /v1 nodes/proxy named worker-1 (long)"),
        ("a node's port", "GET", "/api/v1/nodes/worker-1:10250/proxy/", "Get /v1 nodes/proxy named worker-1:10250 (long)"),
        ("a pod, without a slash", "GET", "/api/v1/namespaces/a/pods/b/proxy", "Get /v1 pods/proxy in a named b (long)"),
        ("the method gives the verb", "POST", "/api/v1/namespaces/a/pods/b:8080/proxy/submit", "Create /v1 pods/proxy in a named b:8080 (long)"),
        ("empty and dot segments", "GET", "/api/v1/namespaces/ns/services/https:svc:443/proxy/a//b/../c", "Get /v1 services/proxy in ns named https:svc:443 (long)"),
        ("an empty first segment", "GET", "/api/v1/namespaces/ns/services/svc/proxy//", "Get /v1 services/proxy in ns named svc (long)"),
        ("encoded slashes and dots", "GET", "/api/v1/namespaces/ns/services/svc/proxy/a%2Fb/%2e%2e/c", "Get /v1 services/proxy in ns named svc (long)"),
        ("bytes that are no text", "GET", "/api/v1/namespaces/ns/services/svc/proxy/%ff%00", "Get /v1 services/proxy in ns named svc (long)"),
        ("an encoded name", "GET", "/api/v1/namespaces/ns/services/https%3Asvc%3A/proxy/x", "Get /v1 services/proxy in ns named https:svc: (long)"),
        ("an encoded letter in proxy", "GET", "/api/v1/namespaces/ns/services/svc/%70roxy/a//b", "Get /v1 services/proxy in ns named svc (long)"),
        ("a broken escape in the tail breaks it all", "GET", "/api/v1/namespaces/ns/services/svc/proxy/100%", "other"),
        ("a raw control byte in the tail breaks it all", "GET", "/api/v1/namespaces/ns/services/svc/proxy/a\u{1}", "other"),
        ("an empty segment before proxy", "GET", "/api/v1/namespaces/ns/services//proxy/a", "other"),
        ("a dot segment before proxy", "GET", "/api/v1/namespaces/ns/services/../proxy/a", "other"),
        ("proxy behind an encoded slash", "GET", "/api/v1/namespaces/ns/services/svc%2Fproxy/a//b", "other"),
        ("old prefix, a node", "GET", "/api/v1/proxy/nodes/worker-1/stats//x", "Proxy /v1 nodes named worker-1 (long)"),
        ("old prefix, a service", "POST", "/api/v1/proxy/namespaces/a/services/b/x/../y", "Proxy /v1 services in a named b (long)"),
        ("old prefix, a namespace's status", "GET", "/api/v1/proxy/namespaces/a/status", "Proxy /v1 namespaces in a named a (long)"),
        ("old prefix, a collection", "GET", "/api/v1/proxy/pods", "Proxy /v1 pods (long)"),
        ("old prefix alone", "GET", "/api/v1/proxy", "other"),
    ]);
}

#[rustfmt::skip]
#[test]
fn watches_are_told_from_lists() {
    check(&[
        ("true", "GET", "/api/v1/pods?watch=true", "Watch /v1 pods (long)"),
        ("1", "GET", "/api/v1/pods?watch=1", "Watch /v1 pods (long)"),
        ("a flag", "GET", "/api/v1/pods?watch", "Watch /v1 pods (long)"),
        ("an empty value", "GET", "/api/v1/pods?watch=&limit=1", "Watch /v1 pods (long)"),
        ("nonsense is yes", "GET", "/api/v1/pods?watch=no", "Watch /v1 pods (long)"),
        ("false", "GET", "/api/v1/pods?watch=false", "List /v1 pods"),
        ("FALSE", "GET", "/api/v1/pods?watch=FALSE", "List /v1 pods"),
        ("false with a long s", "GET", "/api/v1/pods?watch=fal%C5%BFe", "List /v1 pods"),
        ("0", "GET", "/api/v1/pods?watch=0", "List /v1 pods"),
        ("00 is yes", "GET", "/api/v1/pods?watch=00", "Watch /v1 pods (long)"),
        ("the first one counts", "GET", "/api/v1/pods?watch=0&watch=1", "List /v1 pods"),
        ("a dropped one does not count", "GET", "/api/v1/pods?watch=%zz&watch=1", "Watch /v1 pods (long)"),
        ("semicolons drop it", "GET", "/api/v1/pods?watch=1;limit=1", "List /v1 pods"),
        ("an encoded name", "GET", "/api/v1/pods?w%61tch=1", "Watch /v1 pods (long)"),
        ("another name", "GET", "/api/v1/pods?Watch=1", "List /v1 pods"),
        ("an empty query", "GET", "/api/v1/pods?", "List /v1 pods"),
        ("a HEAD", "HEAD", "/api/v1/pods?watch=1", "Watch /v1 pods (long)"),
        ("never with a POST", "POST", "/api/v1/pods?watch=1", "Create /v1 pods"),
        ("never with a name in the path", "GET", "/api/v1/namespaces/a/pods/b?watch=1", "Get /v1 pods in a named b"),
        ("one object", "GET", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name=b&watch=1", "Watch /v1 pods in a named b (long)"),
        ("one object, encoded", "GET", "/api/v1/namespaces/a/pods?watch=1&fieldSelector=metadata.name%3Db", "Watch /v1 pods in a named b (long)"),
        ("a list of one object", "GET", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name=b", "List /v1 pods in a named b"),
        ("double equal sign", "GET", "/api/v1/pods?fieldSelector=metadata.name==b", "List /v1 pods named b"),
        ("triple equal sign", "GET", "/api/v1/pods?fieldSelector=metadata.name===b", "List /v1 pods"),
        ("unequal", "GET", "/api/v1/pods?fieldSelector=metadata.name!=b", "List /v1 pods"),
        ("unequal and equal", "GET", "/api/v1/pods?fieldSelector=metadata.name!==b", "List /v1 pods"),
        ("among other terms", "GET", "/api/v1/pods?fieldSelector=spec.nodeName!=n,,metadata.name=b,", "List /v1 pods named b"),
        ("two names: the first as sorted", "GET", "/api/v1/pods?fieldSelector=metadata.name=c,metadata.name=b", "List /v1 pods named b"),
        ("a wrong term spoils it", "GET", "/api/v1/pods?fieldSelector=metadata.name=b,nonsense", "List /v1 pods"),
        ("escapes", "GET", r"/api/v1/pods?fieldSelector=metadata.name=a\,b\=c\\d", r"List /v1 pods named a,b=c\d"),
        ("a wrong escape", "GET", r"/api/v1/pods?fieldSelector=metadata.name=a\b", "List /v1 pods"),
        ("an unfinished escape", "GET", r"/api/v1/pods?fieldSelector=metadata.name=a\", "List /v1 pods"),
        ("names no path could have", "GET", "/api/v1/pods?fieldSelector=metadata.name=a/b", "List /v1 pods"),
        ("dots", "GET", "/api/v1/pods?fieldSelector=metadata.name=..", "List /v1 pods"),
        ("percent signs", "GET", "/api/v1/pods?fieldSelector=metadata.name=a%2525", "List /v1 pods"),
        ("an empty name", "GET", "/api/v1/pods?fieldSelector=metadata.name=", "List /v1 pods"),
        ("a selector for a named object is ignored", "GET", "/api/v1/nodes/a?fieldSelector=metadata.name=b", "Get /v1 nodes named a"),
        ("old prefix", "GET", "/api/v1/watch/pods", "Watch /v1 pods (long)"),
        ("old prefix, in a namespace", "GET", "/apis/apps/v1/watch/namespaces/a/deployments", "Watch apps/v1 deployments in a (long)"),
        ("old prefix, one object", "GET", "/api/v1/watch/namespaces/a/pods/b", "Watch /v1 pods in a named b (long)"),
        ("old prefix, one namespace", "GET", "/api/v1/watch/namespaces/a", "Watch /v1 namespaces in a named a (long)"),
        ("old prefix, any method and query", "DELETE", "/api/v1/watch/nodes?watch=false", "Watch /v1 nodes (long)"),
        ("old prefix, no selector", "GET", "/api/v1/watch/nodes?fieldSelector=metadata.name=b", "Watch /v1 nodes (long)"),
        ("old prefix alone", "GET", "/api/v1/watch", "other"),
        ("old prefix and a slash", "GET", "/apis/apps/v1/watch/", "other"),
    ]);
}

#[rustfmt::skip]
#[test]
fn discovery_documents_are_told_apart() {
    check(&[
        ("core versions", "GET", "/api", "core versions"),
        ("core versions, with a slash", "GET", "/api/", "core versions"),
        ("groups", "GET", "/apis", "groups"),
        ("groups, with a slash", "GET", "/apis/", "groups"),
        ("groups, with a timeout", "GET", "/apis?timeout=32s", "groups"),
        ("one group", "GET", "/apis/apps", "group apps"),
        ("one group, with a slash", "GET", "/apis/apps/", "group apps"),
        ("core resources", "GET", "/api/v1", "resources of /v1"),
        ("core resources, with a slash", "GET", "/api/v1/", "resources of /v1"),
        ("resources", "GET", "/apis/apps/v1?timeout=32s", "resources of apps/v1"),
        ("resources, with a slash", "GET", "/apis/apps/v1/", "resources of apps/v1"),
        ("a group called watch", "GET", "/apis/watch/v1", "resources of watch/v1"),
        ("an encoded group", "GET", "/apis/%61pps", "group apps"),
        ("openapi v2", "GET", "/openapi/v2", "openapi v2"),
        ("openapi v2, with a slash", "GET", "/openapi/v2/", "other"),
        ("openapi v2, with a tail", "GET", "/openapi/v2/x", "other"),
        ("openapi v3", "GET", "/openapi/v3", "openapi v3"),
        ("openapi v3, with a slash", "GET", "/openapi/v3/", "other"),
        ("openapi v3 of the core group", "GET", "/openapi/v3/api/v1?hash=ABC", "openapi v3 of /v1"),
        ("openapi v3 of a group version", "GET", "/openapi/v3/apis/apps/v1", "openapi v3 of apps/v1"),
        ("openapi v3 of a group version, with a slash", "GET", "/openapi/v3/apis/apps/v1/", "other"),
        ("openapi v3 of a group", "GET", "/openapi/v3/apis/apps", "other"),
        ("openapi v3 of groups", "GET", "/openapi/v3/apis", "other"),
        ("openapi v3 of something else", "GET", "/openapi/v3/.well-known/openid-configuration", "other"),
        ("openapi v3 of too much", "GET", "/openapi/v3/apis/apps/v1/x", "other"),
        ("openapi v3 with dots", "GET", "/openapi/v3/apis/apps/../v1", "other"),
        ("openapi v3 with dots, late", "GET", "/openapi/v3/a/b/c/d/..", "other"),
        ("openapi of the future", "GET", "/openapi/v4", "other"),
        ("openapi alone", "GET", "/openapi", "other"),
        ("not only GET", "OPTIONS", "/apis", "groups"),
    ]);
}

#[rustfmt::skip]
#[test]
fn everything_else_is_other() {
    check(&[
        ("root", "GET", "/", "other"),
        ("two slashes", "GET", "//", "other"),
        ("many slashes", "GET", "////", "other"),
        ("an empty path", "GET", "", "other"),
        ("an asterisk", "OPTIONS", "*", "other"),
        ("no leading slash", "GET", "api/v1/pods", "other"),
        ("absolute form", "GET", "http://10.0.0.1/api/v1/pods", "other"),
        ("authority form", "CONNECT", "10.0.0.1:6443", "other"),
        ("health", "GET", "/readyz?verbose", "other"),
        ("metrics", "GET", "/metrics", "other"),
        ("version", "GET", "/version", "other"),
        ("keys", "GET", "/openid/v1/jwks", "other"),
        ("prefixes are whole segments", "GET", "/apisx/apps/v1/deployments", "other"),
        ("prefixes are case-sensitive", "GET", "/API/v1/pods", "other"),
        ("prefixes come first", "GET", "/x/api/v1/pods", "other"),
        ("a watch of nothing", "GET", "/metrics?watch=1", "other"),
        ("profiles take their time", "GET", "/debug/pprof/profile?seconds=30", "other (long)"),
        ("the index of profiles does not", "GET", "/debug/pprof", "other"),
        ("a fragment", "GET", "/api/v1/pods#x", "other"),
        ("a fragment in the query", "GET", "/api/v1/pods?watch=1#x", "other"),
    ]);
}

#[rustfmt::skip]
#[test]
fn paths_with_two_readings_are_other() {
    check(&[
        ("two slashes first", "GET", "//api/v1/pods", "other"),
        ("two slashes inside", "GET", "/api//v1/pods", "other"),
        ("two slashes for a namespace", "GET", "/api/v1/namespaces//pods", "other"),
        ("two slashes for a group", "GET", "/apis//v1", "other"),
        ("two slashes last", "GET", "/api/v1/pods//", "other"),
        ("two slashes after discovery", "GET", "/api//", "other"),
        ("two slashes after a subresource", "GET", "/api/v1/namespaces/a/pods/b/log//x", "other"),
        ("a dot segment", "GET", "/api/v1/./pods", "other"),
        ("two dots", "GET", "/api/v1/namespaces/../pods", "other"),
        ("two dots into it", "GET", "/healthz/../api/v1/pods", "other"),
        ("two dots for a name", "GET", "/api/v1/pods/..", "Get /v1 pods named .."),
        ("a dot for a name", "GET", "/api/v1/namespaces/a/pods/.", "Get /v1 pods in a named ."),
        ("encoded dots for a name", "GET", "/apis/apps/v1/namespaces/a/deployments/%2e%2E/scale", "Get apps/v1 deployments/scale in a named .."),
        ("two dots for a watched name", "GET", "/api/v1/watch/pods/..", "other"),
        ("two dots for a namespace's name", "GET", "/api/v1/namespaces/..", "other"),
        ("encoded dots", "GET", "/api/v1/%2e%2E/pods", "other"),
        ("half-encoded dots", "GET", "/api/v1/.%2e/pods", "other"),
        ("dots after a subresource", "GET", "/api/v1/namespaces/a/pods/b/exec/..", "other"),
        ("three dots are a name", "GET", "/api/v1/nodes/...", "Get /v1 nodes named ..."),
        ("an encoded slash", "GET", "/api/v1/namespaces%2Fa/pods", "other"),
        ("an encoded slash in a name", "GET", "/api/v1/nodes/a%2fb", "other"),
        ("an encoded slash last", "GET", "/api/v1/pods%2F", "other"),
        ("an encoded NUL", "GET", "/api/v1/nodes/a%00", "other"),
        ("an encoded line feed", "GET", "/api/v1/nodes/a%0a", "other"),
        ("an encoded DEL", "GET", "/api/v1/nodes/a%7F", "other"),
        ("a raw NUL", "GET", "/api/v1/nodes/a\0", "other"),
        ("a raw tab", "GET", "/api/v1/nodes/\t", "other"),
        ("a raw blank", "GET", "/api/v1/nodes/a b", "other"),
        ("a raw control byte in the query", "GET", "/api/v1/nodes?a=\u{1}", "other"),
        ("a broken escape", "GET", "/api/v1/nodes/%zz", "other"),
        ("a cut escape", "GET", "/api/v1/nodes/%4", "other"),
        ("a bare percent sign", "GET", "/api/v1/nodes/%", "other"),
        ("an escape across a slash", "GET", "/api/v1/nodes%2/f", "other"),
        ("an escape with a sign", "GET", "/api/v1/nodes/%+1", "other"),
        ("a broken escape anywhere", "GET", "/api/v1/namespaces/a/pods/b/log/x/%g0", "other"),
        ("no UTF-8", "GET", "/api/v1/nodes/%ff", "other"),
        ("overlong UTF-8", "GET", "/api/v1/nodes/%c0%af", "other"),
        ("encoded UTF-8 is fine", "GET", "/api/v1/nodes/%C3%BC", "Get /v1 nodes named ü"),
        ("encoded letters are letters", "GET", "/%61pi/v1/%70ods", "List /v1 pods"),
        ("encoded only once", "GET", "/api/v1/nodes/%2561", "Get /v1 nodes named %61"),
        ("encoded dots, twice", "GET", "/api/v1/nodes/%252e%252e", "Get /v1 nodes named %2e%2e"),
        ("a plus sign is itself", "GET", "/api/v1/nodes/a+b", "Get /v1 nodes named a+b"),
        ("an encoded question mark", "GET", "/api/v1/nodes/a%3Fwatch=1", "Get /v1 nodes named a?watch=1"),
        ("an encoded colon", "GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode", "Get rbac.authorization.k8s.io/v1 clusterroles named system:node"),
        ("a semicolon is part of a name", "GET", "/api/v1/nodes/a;b=c", "Get /v1 nodes named a;b=c"),
        ("a backslash is part of a name", "GET", r"/api/v1/nodes/..\a", r"Get /v1 nodes named ..\a"),
    ]);
}

#[test]
fn only_what_an_apiserver_may_upgrade_is_an_upgrade() {
    let may = |path: &str| {
        let (bare, query) = path.split_once('?').unwrap_or((path, ""));
        read(&Method::GET, bare, Some(query)).may_be_upgraded(bare)
    };
    for path in [
        "/api/v1/namespaces/a/pods/b/exec",
        "/api/v1/namespaces/a/pods/b/log",
        "/api/v1/nodes/a/proxy/x",
        "/api/v1/pods?watch=1",
        "/api/v1/watch/pods",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/b/vnc",
        "/apis/example.com/v1/consoles/a",
        "/api/v1/namespaces/a/pods/b//exec",
        "/else",
    ] {
        assert!(may(path), "{path}");
    }
    for path in [
        "/",
        "/version",
        "/version/",
        "/healthz/etcd",
        "/api",
        "/apis/apps/v1",
        "/openapi/v2",
        "/api/v1/pods",
        "/api/v1/namespaces/a/configmaps/b?watch=1",
    ] {
        assert!(!may(path), "{path}");
    }
}

#[test]
fn question_marks_cannot_come_in_with_the_path() {
    let info = read(&Method::GET, "/api/v1/pods?watch=1", None);
    assert_eq!(line(&info), "other");
}

#[test]
fn very_long_paths_are_read_to_their_end() {
    let name = "n".repeat(1 << 20);
    let named = format!("/api/v1/nodes/{name}");
    assert_eq!(
        line(&read_target("GET", &named)),
        format!("Get /v1 nodes named {name}")
    );

    let deep = format!("/api/v1/nodes/a/b{}", "/c".repeat(1 << 20));
    assert_eq!(line(&read_target("GET", &deep)), "Get /v1 nodes/b named a");
    assert_eq!(line(&read_target("GET", &format!("{deep}/.."))), "other");
}

#[test]
fn the_form_of_a_path_is_independent_of_its_names() {
    let form = |path: &str| match read_target("GET", path).target {
        Target::Resource(resource) => resource.form,
        other => panic!("{path}: {other:?}"),
    };
    for (path, [prefixed, in_namespace, named, longer]) in [
        ("/api/v1/pods", [false, false, false, false]),
        ("/api/v1/pods?fieldSelector=metadata.name%3Dx", [false; 4]),
        ("/api/v1/pods?watch=true", [false; 4]),
        ("/api/v1/pods/x", [false, false, true, false]),
        ("/api/v1/namespaces", [false; 4]),
        ("/api/v1/namespaces/x", [false, false, true, false]),
        ("/api/v1/namespaces/x/status", [false, false, true, false]),
        ("/api/v1/namespaces/x/status/y", [false, false, true, true]),
        ("/api/v1/namespaces/x/nodes", [false, true, false, false]),
        (
            "/api/v1/namespaces/x/namespaces/x",
            [false, true, true, false],
        ),
        ("/apis/a/v1/namespaces/x/b/c/d", [false, true, true, false]),
        (
            "/apis/a/v1/namespaces/x/b/c/d/e/f/",
            [false, true, true, true],
        ),
        (
            "/api/v1/namespaces/x/pods/y/proxy/a/b",
            [false, true, true, false],
        ),
        ("/api/v1/watch/pods", [true, false, false, false]),
        (
            "/api/v1/watch/namespaces/x/pods/y",
            [true, true, true, false],
        ),
    ] {
        let expected = PathForm {
            prefixed,
            in_namespace,
            named,
            longer,
        };
        assert_eq!(form(path), expected, "{path}");
    }
}

#[test]
fn nothing_is_copied_unless_it_is_encoded() {
    let info = read_target(
        "GET",
        "/apis/apps/v1/namespaces/a/deployments?fieldSelector=metadata.name=b&continue=x%3D",
    );
    let Target::Resource(resource) = info.target else {
        panic!("{info:?}");
    };
    let ResourceRequest {
        group,
        version,
        resource,
        subresource,
        namespace,
        name,
        form: _,
    } = resource;
    for part in [group, version, resource, subresource, namespace, name] {
        assert!(
            part.is_empty() || matches!(part, Cow::Borrowed(_)),
            "{part}"
        );
    }
}

#[test]
fn query_values_are_those_of_go() {
    for (name, query, expected) in [
        ("none", "", &[][..]),
        ("another", "b=1", &[]),
        ("one", "a=1", &["1"]),
        ("several, in order", "a=2&b=x&a=1", &["2", "1"]),
        ("no equal sign", "a", &[""]),
        ("two equal signs", "a=1=2", &["1=2"]),
        ("a plus sign is a blank", "a=1+2", &["1 2"]),
        ("an encoded plus sign", "a=1%2B2", &["1+2"]),
        ("an encoded ampersand", "a=1%262", &["1&2"]),
        ("encoded twice", "a=%2561", &["%61"]),
        ("an encoded key", "%61=1", &["1"]),
        ("a blank key is another", "+a=1&a+=1", &[]),
        ("a semicolon drops its pair", "a=1;b=2&a=3", &["3"]),
        ("an encoded semicolon does not", "a=1%3B", &["1;"]),
        (
            "a broken escape drops its pair",
            "a=%&a=%4&a=%zz&a=1",
            &["1"],
        ),
        ("a broken key drops its pair", "a%=1&a=2", &["2"]),
        ("empty pairs", "&&a=1&", &["1"]),
        ("no UTF-8", "a=%ff", &["\u{fffd}"]),
        ("raw UTF-8", "a=ü", &["ü"]),
    ] {
        let values: Vec<_> = query_values(Some(query), "a").collect();
        assert_eq!(values, expected, "{name}");
    }
    assert_eq!(query_values(None, "a").count(), 0);
    assert_eq!(query_values(Some("&=&"), "").collect::<Vec<_>>(), [""]);
}

#[test]
fn targets_that_go_refuses_are_not_well_formed() {
    for (path, query, expected) in [
        ("/", None, true),
        ("/a%20b", Some("%zz"), true),
        ("/ü", Some("ü"), true),
        ("", None, false),
        ("*", None, false),
        ("a", None, false),
        ("/%", None, false),
        ("/%zz", None, false),
        ("/a b", None, false),
        ("/a\u{7f}", None, false),
        ("/a", Some("\n"), false),
        ("/a", Some(" "), false),
    ] {
        assert_eq!(is_well_formed(path, query), expected, "{path:?} {query:?}");
    }
}

/// Segments that kube-apiserver gives no meaning of their own.
fn word() -> impl Strategy<Value = String> {
    "[a-z0-9]([a-z0-9.:*_-]{0,12}[a-z0-9])?".prop_filter("has a meaning", |word| {
        !["namespaces", "watch", "proxy", "status", "finalize"].contains(&word.as_str())
    })
}

/// A path made of what paths are made of, right and wrong.
fn pathlike() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => Just("/".to_owned()),
        4 => prop::sample::select(vec![
            "api", "apis", "openapi", "v1", "v3", "apps", "namespaces", "a", "pods", "services",
            "proxy", "watch", "status", "log", "exec",
        ]).prop_map(|word| format!("/{word}")),
        1 => prop::sample::select(vec![
            ".", "..", "/..", "//", "%2e", "%2E%2e", "%2f", "%00", "%ff", "%", "%4", "%zz", "#",
            "?", " ", "\u{1}", "ü", "%C3%BC", "%70roxy",
        ]).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

fn querylike() -> impl Strategy<Value = Option<String>> {
    let piece = prop::sample::select(vec![
        "watch",
        "follow",
        "fieldSelector",
        "metadata.name",
        "=",
        "=",
        "!=",
        "&",
        ";",
        ",",
        "\\",
        "+",
        "%",
        "%2c",
        "%5c",
        "%3D",
        "%zz",
        "%ff",
        "true",
        "false",
        "0",
        "a",
        "#",
    ]);
    prop::option::of(prop::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat()))
}

fn method() -> impl Strategy<Value = Method> {
    prop::sample::select(vec![
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ])
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(method in method(), path in any::<String>(), query in any::<Option<String>>()) {
        let info = read(&method, &path, query.as_deref());
        prop_assert!(path.starts_with('/') || info.target == Target::Other);
        let _ = query_values(query.as_deref(), &path).count();
    }

    #[test]
    fn nothing_like_a_path_makes_it_panic(method in method(), path in pathlike(), query in querylike()) {
        let info = read(&method, &path, query.as_deref());
        prop_assert!(is_well_formed(&path, query.as_deref()) || info.target == Target::Other);
    }

    #[test]
    fn what_was_built_is_what_is_read(
        group in prop::option::of(word()), version in word(), namespace in prop::option::of(word()),
        resource in word(), name in prop::option::of((word(), prop::option::of(word()))), slash in any::<bool>(),
    ) {
        let mut path = match &group {
            Some(group) => format!("/apis/{group}/{version}"),
            None => format!("/api/{version}"),
        };
        if let Some(namespace) = &namespace {
            path += &format!("/namespaces/{namespace}");
        }
        path += &format!("/{resource}");
        let (name, subresource) = name.map_or((None, None), |(name, subresource)| (Some(name), subresource));
        for part in [&name, &subresource].into_iter().flatten() {
            path += &format!("/{part}");
        }
        if slash {
            path.push('/');
        }
        let verb = if name.is_some() { Verb::Get } else { Verb::List };
        let form = PathForm {
            in_namespace: namespace.is_some(),
            named: name.is_some(),
            ..PathForm::default()
        };
        let expected = ResourceRequest {
            form,
            group: group.unwrap_or_default().into(),
            version: version.into(),
            resource: resource.into(),
            subresource: subresource.unwrap_or_default().into(),
            namespace: namespace.unwrap_or_default().into(),
            name: name.unwrap_or_default().into(),
        };
        let info = read(&Method::GET, &path, None);
        prop_assert_eq!(info.verb, verb);
        prop_assert_eq!(info.target, Target::Resource(expected));
    }

    #[test]
    fn encoding_a_byte_changes_nothing(
        path in "/api(s/[a-z]{1,3})?/v1(/namespaces/[a-z]{1,3})?/(pods|watch/pods|nodes/proxy)(/[a-z]{1,3}){0,3}",
        at in any::<prop::sample::Index>(),
    ) {
        let letters: Vec<usize> = path.match_indices(|c| c != '/').map(|(at, _)| at).collect();
        let at = letters[at.index(letters.len())];
        let encoded = format!("{}%{:02x}{}", &path[..at], path.as_bytes()[at], &path[at + 1..]);
        prop_assert_eq!(read(&Method::GET, &encoded, None), read(&Method::GET, &path, None));
    }

    #[test]
    fn dots_and_empty_segments_are_never_more_than_a_name_outside_a_proxied_path(path in pathlike()) {
        let info = read(&Method::GET, &path, None);
        let proxied = matches!(&info.target, Target::Resource(r) if r.subresource == "proxy") || info.verb == Verb::Proxy;
        let decoded = path.to_ascii_lowercase().replace("%2e", ".");
        let mut segments = decoded.split('/').skip(1).collect::<Vec<_>>();
        if segments.last() == Some(&"") {
            segments.pop();
        }
        let dots = |name: &str| [".", ".."].contains(&name);
        let named = matches!(&info.target, Target::Resource(resource) if dots(&resource.name));
        let odd = segments.iter().filter(|segment| segment.is_empty() || dots(segment)).count();
        if !proxied && odd > usize::from(named) {
            prop_assert!(matches!(info.target, Target::Other), "{:?}", info);
        }
    }

    #[test]
    fn a_proxied_path_changes_nothing_before_it(tail in "[a-z./]{0,12}", encoded in "(%2[eEfF]|%[0-9a-f]{2}){0,4}") {
        let head = "/api/v1/namespaces/a/services/b/proxy";
        let path = format!("{head}/{tail}{encoded}");
        prop_assert_eq!(read(&Method::GET, &path, None), read(&Method::GET, head, None));
    }
}
