//! Discovery documents, of whatever form the bytes may be.
#![no_main]

use kube_interop_proxy::kube::discovery::documents::{aggregated, group_versions, resources};
use kube_interop_proxy::kube::discovery::model::served;
use kube_interop_proxy::kube::discovery::pool::Pool;
use kube_interop_proxy::kube::discovery::read;
use kube_interop_proxy::kube::gvr::GroupVersion;
use kube_interop_proxy::kube::version::versions;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = aggregated(data);
    let _ = versions(data);
    // Whether groups are left out or not, the others are the same.
    let all = read::groups(&mut Pool::default(), data);
    let some = read::groups_where(&mut Pool::default(), data, |name| name.len() % 2 == 0);
    if let (Ok(all), Ok(some)) = (all, some) {
        let all = all.into_iter().filter(|group| group.name.len() % 2 == 0);
        assert_eq!(some, all.collect::<Vec<_>>());
    }
    for of in group_versions(data).unwrap_or_default() {
        assert!(!of.version.is_empty());
        assert!(of.path().starts_with("/api"));
    }
    let of = GroupVersion {
        group: "apps".to_owned(),
        version: "v1".to_owned(),
    };
    for gvr in served(&resources(&of, data)) {
        assert_eq!((gvr.group.as_str(), gvr.version.as_str()), ("apps", "v1"));
    }
});
