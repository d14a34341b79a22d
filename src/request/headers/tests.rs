use super::*;

fn privileged() -> PrivilegedHeaders {
    let names = |names: &[&'static str]| {
        names
            .iter()
            .map(|name| HeaderName::from_static(name))
            .collect()
    };
    PrivilegedHeaders::new(&RequestHeaders {
        username: names(&["x-remote-user", "x-other-user"]),
        uid: names(&["x-remote-uid"]),
        group: names(&["x-foo-group"]),
        extra_prefixes: vec!["x-remote-extra-".into()],
    })
}

fn request(headers: &[(&str, &str)]) -> HeaderMap {
    let field = |(name, value): &(&str, &str)| {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        (name, HeaderValue::from_str(value).unwrap())
    };
    let mut request = HeaderMap::new();
    for (name, value) in headers.iter().map(field) {
        request.append(name, value);
    }
    request
}

fn names(request: &HeaderMap) -> Vec<&str> {
    let mut names: Vec<_> = request.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn no_spelling_of_a_privileged_header_gets_through() {
    for name in [
        "X-Remote-User",
        "x-remote-user",
        "X-REMOTE-USER",
        "X_Remote_User",
        "X-Remote_User",
        "X-Other-User",
        "X-Remote-Uid",
        "X-Foo-Group",
        "x_foo_group",
        "X-Remote-Extra-Scopes",
        "X_Remote_Extra_Scopes",
        "X-Remote-Extra-",
        "X-Kubernetes-APIServer-Rerouted",
        "X-Kubernetes-Peer-Proxied",
        "x_kubernetes_peer_proxied",
    ] {
        let mut request = request(&[(name, "a"), ("Accept", "b"), (name, "c")]);
        assert_eq!(privileged().strip(&mut request), 1, "{name}");
        assert_eq!(names(&request), ["accept"], "{name}");
    }
}

#[test]
fn what_only_looks_like_one_stays() {
    let mine = [
        "x-remote-group",
        "x-remote-usera",
        "remote-user",
        "x-remote-extra",
        "x-kubernetes-if-ready",
        "impersonate-user",
    ];
    let mut request = request(&mine.map(|name| (name, "v")));
    assert_eq!(privileged().strip(&mut request), 0);
    assert_eq!(request.len(), mine.len());
}

#[test]
fn a_certificate_user_is_written_under_the_apiservers_own_names_and_brings_no_token() {
    let who = UserHeaders {
        user: HeaderValue::from_static("alice"),
        groups: vec![
            HeaderValue::from_static("devs"),
            HeaderValue::from_static("qa"),
        ],
        credential: HeaderValue::from_static("X509SHA256=00"),
        uid: Some(HeaderValue::from_static("42")),
    };
    let mut request = request(&[("Authorization", "Bearer bob")]);
    privileged().stamp(&mut request, &who).unwrap();
    assert_eq!(names(&request), ["x-foo-group", "x-remote-user"]);
    let groups: Vec<_> = request.get_all("x-foo-group").iter().collect();
    assert_eq!(groups, ["devs", "qa"]);

    let mut with = |details| privileged().stamp_details(&mut request, &who, details);
    with(CredentialFeatures::default()).unwrap();
    let (credential_id, uid) = (true, true);
    let details = CredentialFeatures {
        credential_id,
        uid,
        ..CredentialFeatures::default()
    };
    with(details).unwrap();
    let name = "x-remote-extra-authentication.kubernetes.io%2fcredential-id";
    assert_eq!(request[name], "X509SHA256=00");
    assert_eq!(request["x-remote-uid"], "42");
    assert_eq!(
        privileged().strip(&mut request),
        4,
        "nobody else may send it"
    );
}

#[test]
fn who_is_named_anonymous_or_unauthenticated_is_so_to_apiservers() {
    let privileged = privileged();
    for (headers, expected) in [
        (vec![("X-Remote-User", "system:anonymous")], true),
        (vec![("X-Other-User", "system:anonymous")], true),
        (
            vec![
                ("X-Remote-User", "alice"),
                ("X-Foo-Group", "devs"),
                ("X-Foo-Group", "system:unauthenticated"),
            ],
            true,
        ),
        (
            vec![
                ("X-Remote-User", "system:unauthenticated"),
                ("X-Foo-Group", "system:anonymous"),
            ],
            false,
        ),
        (vec![], false),
    ] {
        let found = privileged.name_unauthenticated(&request(&headers));
        assert_eq!(found, expected, "{headers:?}");
    }
}

#[test]
fn an_empty_remote_user_names_nobody() {
    let privileged = privileged();
    for (headers, named) in [
        (vec![("X-Remote-User", "alice")], true),
        (vec![("X-Other-User", "alice")], true),
        (vec![("X-Remote-User", "")], false),
        (vec![("X-Remote-User", "  ")], false),
        (vec![("X-Foo-Group", "devs")], false),
    ] {
        assert_eq!(
            privileged.named_user(&request(&headers)).is_some(),
            named,
            "{headers:?}"
        );
    }
}

#[test]
fn what_belongs_to_the_connection_ends_with_it() {
    let mut request = request(&[
        ("Connection", "keep-alive, X-Secret"),
        ("Connection", "Upgrade"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("TE", "trailers"),
        ("Upgrade", "SPDY/3.1"),
        ("X-Secret", "1"),
        ("Accept", "*/*"),
    ]);
    strip_hop_by_hop(&mut request, Version::HTTP_11, false).unwrap();
    assert_eq!(names(&request), ["accept"]);
}

#[test]
fn connection_cannot_take_away_who_is_asking() {
    let mut request = request(&[
        (
            "Connection",
            "Impersonate-User, Impersonate-Extra-Scopes, Authorization",
        ),
        ("Impersonate-User", "bob"),
        ("Impersonate-Extra-Scopes", "x"),
        ("Authorization", "Bearer x"),
    ]);
    strip_hop_by_hop(&mut request, Version::HTTP_11, false).unwrap();
    assert_eq!(
        names(&request),
        [
            "authorization",
            "impersonate-extra-scopes",
            "impersonate-user"
        ]
    );
}

#[test]
fn an_upgrade_stays_one() {
    let mut request = request(&[
        ("Connection", "Upgrade, X-Secret"),
        ("Upgrade", "SPDY/3.1"),
        ("X-Secret", "1"),
    ]);
    strip_hop_by_hop(&mut request, Version::HTTP_11, true).unwrap();
    assert_eq!(names(&request), ["connection", "upgrade"]);
    assert_eq!(request["connection"], "Upgrade");
}

#[test]
fn an_upgrade_is_meant_where_connection_says_so() {
    let means = |values: &[&str]| {
        let headers: Vec<_> = values.iter().map(|value| ("Connection", *value)).collect();
        means_upgrade(&request(&headers))
    };
    for meant in [
        &["Upgrade"][..],
        &["keep-alive, UPGRADE"],
        &["a", "upgrade"],
    ] {
        assert!(means(meant), "{meant:?}");
    }
    for plain in [&[][..], &[""], &["keep-alive"], &["upgrad", "e"]] {
        assert!(!means(plain), "{plain:?}");
    }
}

#[test]
fn the_clients_address_is_what_we_saw() {
    let real = HeaderValue::from_static("192.0.2.1");
    let mut forged = request(&[
        ("X-Forwarded-For", "1.1.1.1"),
        ("X-Forwarded-For", "2.2.2.2"),
        ("X-Real-Ip", "3.3.3.3"),
    ]);
    stamp_address(&mut forged, &real).unwrap();
    assert_eq!(
        forged.get_all("x-forwarded-for").iter().collect::<Vec<_>>(),
        ["192.0.2.1"]
    );
    assert_eq!(forged["x-real-ip"], "192.0.2.1");
    let mut plain = request(&[]);
    stamp_address(&mut plain, &real).unwrap();
    assert_eq!(names(&plain), ["x-forwarded-for"]);
}

#[test]
fn the_version_asked_for_is_one_or_none() {
    let name = HeaderName::from_static("x-version");
    let read = |values: &[&str]| {
        let headers: Vec<_> = values.iter().map(|value| ("X-Version", *value)).collect();
        version_asked(&request(&headers), &name)
    };
    let asked = "1.32".parse().ok();
    for values in [&["1.32"][..], &["v1.32"], &["1.32", "v1.32"], &[" 1.32\t"]] {
        assert_eq!(read(values), Ok(asked), "{values:?}");
    }
    assert_eq!(read(&[]), Ok(None));
    for values in [
        &[""][..],
        &["1.32", "1.33"],
        &["1.32", ""],
        &["", "1.32"],
        &["1.32, 1.32"],
        &["1.32.1"],
        &["\u{e9}"],
    ] {
        assert_eq!(read(values), Err(MalformedVersion), "{values:?}");
    }
    let other = request(&[("X-Versions", "?"), ("X_Version", "?")]);
    assert_eq!(version_asked(&other, &name), Ok(None));
}
