//! What other proxies write to etcd about themselves.
#![no_main]

use kube_interop_proxy::cluster::record::{LiveKey, Record, pack, unpack};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(live) = serde_json::from_slice::<LiveKey>(data) {
        let written = serde_json::to_vec(&live).expect("own value");
        assert_eq!(
            serde_json::from_slice::<LiveKey>(&written).expect("own value"),
            live
        );
    }
    if let Ok(record) = serde_json::from_slice::<Record>(data) {
        let written = serde_json::to_vec(&record).expect("own value");
        assert_eq!(
            serde_json::from_slice::<Record>(&written).expect("own value"),
            record
        );
        let _ = pack(&unpack(&record.resources));
    }
});
