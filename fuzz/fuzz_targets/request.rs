//! A client's bytes on a connection of HTTP/1.1: what is read from its first request, and what is left of its header
//! when somebody's identity is written into it.
#![no_main]

use std::sync::LazyLock;

use http::Version;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::request::Parts;
use kube_interop_proxy::config::{Config, parse};
use kube_interop_proxy::relay::answer::{StatusFormat, is_for_one_server};
use kube_interop_proxy::relay::client::{has_one_length, is_hosted, names_a_path};
use kube_interop_proxy::relay::plan::is_held_back;
use kube_interop_proxy::request::caller::UserHeaders;
use kube_interop_proxy::request::headers::{
    IF_READY, PrivilegedHeaders, stamp_address, strip_hop_by_hop, version_asked,
};
use kube_interop_proxy::request::info::{self, Target};
use kube_interop_proxy::request::token;
use kube_interop_proxy::watches::history::resumed_after;
use libfuzzer_sys::fuzz_target;
use pingora_core::protocols::http::ServerSession;
use tokio::io::AsyncWriteExt as _;
use tokio::runtime::{Builder, Runtime};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
});
static CONFIG: LazyLock<Config> =
    LazyLock::new(|| parse(include_str!("../../config.example.yaml")).expect("the example"));

fuzz_target!(|data: &[u8]| {
    let Some(session) = RUNTIME.block_on(read(data)) else {
        return;
    };
    let header = session.req_header();
    let target = header.uri.path_and_query();
    let (path, query) = target.map_or(("/", None), |target| (target.path(), target.query()));
    let well_formed = names_a_path(Some(&session)) && is_hosted(header);
    let _ = well_formed && has_one_length(Some(&session), &header.headers);
    look(header, path, query);
    write(header.headers.clone(), session.is_upgrade_req());
});

/// The first request of a connection, if there is one.
async fn read(data: &[u8]) -> Option<ServerSession> {
    let (mut client, server) = tokio::io::duplex(data.len().max(1));
    client.write_all(data).await.ok()?;
    drop(client);
    let mut session = ServerSession::new_http1(Box::new(server));
    matches!(session.read_request().await, Ok(true)).then_some(session)
}

/// What is asked for, and how.
fn look(header: &Parts, path: &str, query: Option<&str>) {
    let info = info::read(&header.method, path, query);
    assert!(info::is_well_formed(path, query) || info.target == Target::Other);
    let revision = resumed_after(&CONFIG.etcd, &info, query);
    assert!(revision.is_none_or(|revision| revision > 0));
    let accept = header.headers.get(ACCEPT);
    let _ = StatusFormat::accepted(accept);
    let kind = header.headers.get(CONTENT_TYPE);
    let _ = is_for_one_server(
        accept,
        kind.and_then(|kind| kind.to_str().ok()).unwrap_or(""),
    );
    if let Ok(Some(version)) = version_asked(&header.headers, &CONFIG.version_awareness.header) {
        assert_eq!(version.to_string().parse(), Ok(version));
    }
    let asked = header.headers.contains_key(IF_READY);
    let held_back = is_held_back(&CONFIG.if_ready, path, asked, true);
    assert!(!held_back, "held back by an initialized server");
}

/// Whatever there was, it is this user's request afterwards, and nobody else's.
fn write(mut headers: HeaderMap, upgrade: bool) {
    let privileged = PrivilegedHeaders::new(&CONFIG.serving.request_headers);
    let who = UserHeaders {
        user: HeaderValue::from_static("somebody"),
        groups: vec![HeaderValue::from_static("some")],
        credential: HeaderValue::from_static("X509SHA256=0"),
        uid: None,
    };
    privileged.strip(&mut headers);
    assert_eq!(privileged.strip(&mut headers), 0);
    assert_eq!(privileged.named_user(&headers), None);
    strip_hop_by_hop(&mut headers, Version::HTTP_11, upgrade).expect("legal headers");
    privileged.stamp(&mut headers, &who).expect("legal headers");
    stamp_address(&mut headers, &HeaderValue::from_static("127.0.0.1")).expect("legal headers");
    assert!(!token::is_there(&headers, true));
    let values = |name: &str| headers.get_all(name).iter().collect::<Vec<_>>();
    assert_eq!(values("x-remote-user"), ["somebody"]);
    assert_eq!(values("x-remote-group"), ["some"]);
    assert_eq!(values("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(headers.contains_key("connection"), upgrade);
}
