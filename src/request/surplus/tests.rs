use std::collections::BTreeMap;

use http::{HeaderName, HeaderValue};
use serde_json::json;

use super::*;
use crate::config::RequestHeaders;

fn configured() -> PrivilegedHeaders {
    let one = |name: &'static str| vec![HeaderName::from_static(name)];
    PrivilegedHeaders::new(&RequestHeaders {
        username: one("x-remote-user"),
        uid: one("x-remote-uid"),
        group: one("x-remote-group"),
        extra_prefixes: vec!["x-remote-extra-".into()],
    })
}

fn published(groups: &[&str], prefixes: &[&str]) -> PublishedNames {
    let data: BTreeMap<_, _> = [
        (NameList::Username, json!(["X-Remote-User"])),
        (NameList::Group, json!(groups)),
        (NameList::Extra, json!(prefixes)),
    ]
    .map(|(list, names)| (list.field().to_owned(), names.to_string()))
    .into();
    PublishedNames::read(&data).unwrap()
}

fn surplus(published: &PublishedNames) -> SurplusHeaders {
    let surplus = SurplusHeaders::default();
    surplus.set(&configured(), published);
    surplus
}

fn request(names: &[&str]) -> HeaderMap {
    let mut request = HeaderMap::new();
    for name in names {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        request.append(&name, HeaderValue::from_static("a"));
        request.append(name, HeaderValue::from_static("b"));
    }
    request
}

fn left(request: &HeaderMap) -> Vec<&str> {
    request.keys().map(HeaderName::as_str).collect()
}

/// What clients need: a few of each kind.
const NEEDED: [&str; 9] = [
    "accept",
    "authorization",
    "connection",
    "content-type",
    "impersonate-user",
    "impersonate-extra-scopes",
    "sec-websocket-protocol",
    "upgrade",
    "x-stream-protocol-version",
];

#[test]
fn no_spelling_of_a_surplus_name_gets_through() {
    let surplus = surplus(&published(&["X-Auth-Group", "_Team"], &["X-Auth-Extra-"]));
    assert!(surplus.is_known());
    for name in [
        "X-Auth-Group",
        "x_auth_group",
        "X-AUTH_Group",
        "_team",
        "-team",
        "X-Auth-Extra-",
        "x_auth_extra_scopes",
    ] {
        let mut request = request(&["accept", name]);
        assert_eq!(surplus.strip(&mut request, &configured()), 1, "{name}");
        assert_eq!(left(&request), ["accept"], "{name}");
    }
    let others = ["x-auth", "x-auth-groups", "x-custom"];
    let mut request = request(&others);
    assert_eq!(surplus.strip(&mut request, &configured()), 0);
    assert_eq!(left(&request), others);
}

#[test]
fn the_configurations_own_names_are_no_surplus() {
    let names = ["X-Remote-Group", "x_remote_user", "X-Remote-Extra-Team"];
    let surplus = surplus(&published(
        &names,
        &["X-Remote-Extra-", "X-Remote-Extra-A-"],
    ));
    assert!(surplus.is_known() && surplus.names.load().is_none());
}

#[test]
fn whoever_writes_the_config_map_takes_nothing_away_that_clients_need() {
    let all: Vec<_> = NEEDED.into_iter().chain(["Impersonate_User"]).collect();
    for prefix in ["", "a", "Acc", "impersonate-", "Sec-WebSocket-", "x-stream"] {
        let surplus = surplus(&published(&all, &[prefix]));
        let mut request = request(&NEEDED);
        assert_eq!(surplus.strip(&mut request, &configured()), 0, "{prefix}");
        assert_eq!(left(&request), NEEDED, "{prefix}");
    }
    let written = ["x-remote-user", "x-remote-group"];
    let mut ours = request(&written);
    let everything = surplus(&published(&[], &["X-"]));
    assert_eq!(everything.strip(&mut ours, &configured()), 0);
    assert_eq!(left(&ours), written, "the proxy has written it");
    let surplus = surplus(&published(&[], &["Acc"]));
    let mut request = request(&["accept", "Access-Token", "ACC"]);
    assert_eq!(surplus.strip(&mut request, &configured()), 2);
}

#[test]
fn names_are_unknown_until_all_have_been_seen() {
    let unknown = SurplusHeaders::default();
    let mut custom = request(&["x-custom"]);
    assert!(!unknown.is_known() && unknown.strip(&mut custom, &configured()) == 0);
    assert!(!surplus(&PublishedNames::default()).is_known());

    let many: Vec<_> = (0..100).map(|number| format!("x-{number:02}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let overflow = surplus(&published(&many, &[]));
    let mut first = request(&["x-00"]);
    assert!(!overflow.is_known());
    assert_eq!(
        overflow.strip(&mut first, &configured()),
        1,
        "what is known is removed"
    );
}

#[test]
fn meanwhile_only_what_clients_need_goes_on_and_what_the_proxy_writes() {
    let written = [
        "x-remote-user",
        "x-remote-group",
        "x-kubernetes-peer-proxied",
    ];
    let foreign = [
        "x-auth-group",
        "x-custom",
        "accept-group",
        "impersonate_user",
    ];
    let expected: Vec<_> = NEEDED.into_iter().chain(written).collect();
    let sent: Vec<_> = expected.iter().copied().chain(foreign).collect();
    let mut request = request(&sent);
    keep_client_headers(&mut request, &configured());
    assert_eq!(left(&request), expected);
}
