//! What a server answers when watches end: the list of one object's metadata, and the discovery document.
#![no_main]

use kube_interop_proxy::kube::gvr::GvrRef;
use kube_interop_proxy::watches::sample::{KeyCount, ListedIn, Sample, kind};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let pods = GvrRef {
        group: "",
        version: "v1",
        resource: "pods",
        subresource: "",
    };
    assert!(kind(&pods.owned(), data).is_none_or(|kind| !kind.is_empty()));
    let Some(sample) = Sample::read(data) else {
        return;
    };
    // etcd has no revision below 1.
    let never = KeyCount {
        revision: 0,
        keys: 0,
    };
    assert_eq!(sample.compared(never, never), ListedIn::OtherEtcd);
    if let Some(object) = &sample.object {
        assert!(object.revision > 0 && !object.key.is_empty());
    }
});
