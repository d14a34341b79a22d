//! The target of a request: a line of path, `?` and query.
#![no_main]

use http::Method;
use kube_interop_proxy::request::info::{Target, is_well_formed, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|target: &str| {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    for method in [Method::GET, Method::POST, Method::DELETE, Method::OPTIONS] {
        let info = read(&method, path, query);
        assert!(is_well_formed(path, query) || info.target == Target::Other);
    }
});
