//! The beginning of a list: whatever it is, what is believed of it is of the version that was asked for.
#![no_main]

use kube_interop_proxy::watches::samples::look::{Encoded, Form};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (bool, bool, Vec<u8>)| {
    let (protobuf, gzip, head) = data;
    let form = if protobuf { Form::Protobuf } else { Form::Json };
    if let Some(sample) = (Encoded { form, gzip }).read(&head, "v1") {
        assert_eq!(sample.type_meta.api_version, "v1");
        assert!(sample.witnesses.iter().all(|witness| witness.revision > 0 && !witness.key.is_empty()));
    }
});
