//! The filter of log lines is read again.

use testkit::cluster::{LONG, Single};
use testkit::wait::eventually;

use super::{PODS, lines};

const FILTER: &str = "logging.filter";
const OPEN: &str = "kube_interop_proxy_long_running_requests";
const ON: &str = "info,access=info,pingora_core=warn";

#[tokio::test]
async fn access_lines_are_switched_on_and_off() {
    let mut single = Single::new().await;
    let admin = single.client().cert("admin");
    let proxy = &mut single.proxy;
    let path = |name: &str| format!("/api/v1/{name}");
    let quoted = |filter: &str| format!("{filter:?}");
    for (name, filter) in [
        ("nodes", "info,access=off"),
        ("services", ON),
        ("secrets", "info,access=off"),
        ("configmaps", ON),
    ] {
        proxy.reconfigure(FILTER, filter);
        proxy.until_setting(FILTER, &quoted(filter)).await;
        admin.get(&path(name)).await;
        if filter == ON {
            let what = format!("{name} is in the log");
            eventually(&what, LONG, async || lines(proxy, &path(name)) == 1).await;
        }
    }
    for name in ["nodes", "secrets"] {
        assert_eq!(lines(proxy, &path(name)), 0, "{name}");
    }
}

#[tokio::test]
async fn rust_log_counts_more_than_the_file() {
    let mut single = Single::with(|options| options.env("RUST_LOG", "info,access=off")).await;
    let admin = single.client().cert("admin");
    let proxy = &mut single.proxy;
    proxy.reconfigure(FILTER, ON);
    proxy.until_setting(FILTER, &format!("{ON:?}")).await;
    admin.get(PODS).await;
    assert_eq!(lines(proxy, "(RUST_LOG is set and counts instead)"), 1);
    proxy.terminate().await;
    assert_eq!(lines(proxy, PODS), 0);
}

#[tokio::test]
async fn a_watch_has_one_access_line_when_it_ends() {
    let mut single = Single::with(|options| options.set(FILTER, ON)).await;
    let admin = single.client().cert("admin");
    let proxy = &mut single.proxy;
    for (name, client) in [("secrets", admin.http1()), ("configmaps", admin.http2())] {
        let path = format!("/api/v1/{name}");
        let watch = client.open(&format!("{path}?watch=1")).await;
        assert_eq!(watch.status, 200);
        assert_eq!(proxy.metric(OPEN, &[]).await, 1.0, "{name}");
        assert_eq!(lines(proxy, &path), 0, "{name}");
        drop(watch);
        let what = format!("the end of {name} is in the log");
        eventually(&what, LONG, async || lines(proxy, &path) == 1).await;
        let ended = |line: &str| line.contains(&path) && line.contains("admin");
        assert!(super::log(proxy).lines().any(ended), "{name}");
        let none = async || proxy.metric(OPEN, &[]).await == 0.0;
        eventually("none is open", LONG, none).await;
    }
}
