//! OpenAPI documents of two servers, in whatever form the bytes may be.
#![no_main]

use kube_interop_proxy::discovery::openapi::{Form, merge};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (Vec<u8>, Vec<u8>)| {
    let (local, peer) = data;
    for form in [Form::V2Json, Form::V2Protobuf, Form::V3Index] {
        let add = |local: &[u8]| merge(form, local, &[&peer], |_| true);
        if let Ok(Some(merged)) = add(&local) {
            assert!(matches!(add(&merged), Ok(None)));
        }
        if let Ok(added) = merge(form, &local, &[&local], |_| true) {
            assert_eq!(added, None);
        }
    }
});
