//! Discovery documents, of whatever form the bytes may be.
#![no_main]

use kube_interop_proxy::kube::discovery::documents::{aggregated, group_versions, resources};
use kube_interop_proxy::kube::discovery::model::Document;
use kube_interop_proxy::kube::gvr::GroupVersion;
use kube_interop_proxy::kube::version::versions;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = aggregated(data);
    let _ = versions(data);
    for of in group_versions(data).unwrap_or_default() {
        assert!(!of.version.is_empty());
        assert!(of.path().starts_with("/api"));
    }
    let of = GroupVersion {
        group: "apps".to_owned(),
        version: "v1".to_owned(),
    };
    let version = resources(&of, data).into_iter();
    let listed: Document = version.map(|it| (of.group.clone(), it)).collect();
    for gvr in listed.served() {
        assert_eq!((gvr.group.as_str(), gvr.version.as_str()), ("apps", "v1"));
    }
});
