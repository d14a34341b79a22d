//! OpenAPI documents of two servers, in whatever form the bytes may be. The first two bytes say how long the first is.
#![no_main]

use kube_interop_proxy::discovery::openapi::{OpenApiFormat, merge};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((length, both)) = data.split_first_chunk() else {
        return;
    };
    let length = usize::from(u16::from_be_bytes(*length));
    let (local, peer) = both.split_at(length.min(both.len()));
    for form in [
        OpenApiFormat::V2Json,
        OpenApiFormat::V2Protobuf,
        OpenApiFormat::V3Index,
    ] {
        let add = |local: &[u8]| merge(form, local, &[peer], |_, _| true);
        if let Ok(Some(merged)) = add(local) {
            assert!(matches!(add(&merged), Ok(None)));
        }
        if let Ok(added) = merge(form, local, &[local], |_, _| true) {
            assert_eq!(added, None);
        }
    }
});
