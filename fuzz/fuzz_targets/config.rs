//! A configuration file: a configuration that works, or what is wrong with it. The files that it names are not read.
#![no_main]

use kube_interop_proxy::cluster::keys::{EtcdKeys, Topic};
use kube_interop_proxy::config::parse;
use kube_interop_proxy::request::headers::PrivilegedHeaders;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match parse(text) {
        Ok(config) => {
            assert_eq!(parse(text).as_ref(), Ok(&config));
            let keys = EtcdKeys::new(&config.etcd.prefix, &config.identity.lease_namespaces);
            for topic in keys.topics() {
                assert_eq!(keys.of(topic).ends_with('/'), topic != Topic::HeaderNames);
            }
            let _ = PrivilegedHeaders::new(&config.serving.request_headers);
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            for problem in problems {
                assert!(!problem.to_string().is_empty());
            }
        }
    }
});
