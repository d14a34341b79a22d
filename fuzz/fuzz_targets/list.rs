//! The beginning of a list: whatever it is, what is believed of it is of the version that was asked for. The first byte
//! says what it is said to be.
#![no_main]

use kube_interop_proxy::watches::samples::sampler::{ListEncoding, ListFormat};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((said, head)) = data.split_first() else {
        return;
    };
    let form = if said & 1 == 0 {
        ListFormat::Json
    } else {
        ListFormat::Protobuf
    };
    let gzip = said & 2 != 0;
    if let Some(sample) = (ListEncoding { form, gzip }).read(head, "v1") {
        assert_eq!(sample.type_meta.api_version, "v1");
        let mut witnesses = sample.anchors.iter();
        assert!(witnesses.all(|witness| witness.revision > 0 && !witness.key.is_empty()));
    }
});
