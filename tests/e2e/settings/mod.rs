//! Settings that change while the proxy runs: how the file is read again, and what requests see of a change.

mod drill;
mod files;
mod logs;
mod requests;

use testkit::proxy::Proxy;

const RELOADS: &str = "kube_interop_proxy_config_reloads_total";
const BROKEN: &str = "kube_interop_proxy_config_broken";
const PODS: &str = "/api/v1/pods";

fn log(proxy: &mut Proxy) -> String {
    std::fs::read_to_string(proxy.process().log()).unwrap()
}

/// How many lines of the log have this text.
fn lines(proxy: &mut Proxy, text: &str) -> usize {
    log(proxy)
        .lines()
        .filter(|line| line.contains(text))
        .count()
}
