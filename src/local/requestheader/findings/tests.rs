use serde_json::json;

use super::*;

fn names() -> RequestHeaders {
    RequestHeaders {
        username: vec![HeaderName::from_static("x-remote-user")],
        uid: vec![HeaderName::from_static("x-remote-uid")],
        group: vec![HeaderName::from_static("x-remote-group")],
        extra_prefixes: vec!["x-remote-extra-".to_owned()],
    }
}

fn asked(status: u16, message: &str) -> UserRecognition {
    let status = StatusCode::from_u16(status).unwrap();
    let body = json!({"kind": "Status", "message": message}).to_string();
    recognised(&names(), "nobody-1", status, body.as_bytes())
}

/// kube-apiserver's message.
fn forbidden(user: &str) -> String {
    format!(
        "configmaps \"extension-apiserver-authentication\" is forbidden: User \"{user}\" cannot get resource \
         \"configmaps\" in API group \"\" in the namespace \"kube-system\""
    )
}

#[test]
fn an_invented_user_is_recognised_by_name() {
    assert_eq!(asked(403, &forbidden("nobody-1")), UserRecognition::Yes);
    for other in ["front-proxy-client", "nobody-12", "system:anonymous", ""] {
        let UserRecognition::No(TrustProblem::TakenFor { user, .. }) =
            asked(403, &forbidden(other))
        else {
            panic!("{other:?} is somebody else");
        };
        assert_eq!(user, other);
    }
}

#[test]
fn a_401_says_that_the_proxy_is_not_believed() {
    let finding = TrustProblem::NotBelieved("x-remote-user".to_owned());
    assert!(finding.to_string().contains("x-remote-user"));
    assert_eq!(asked(401, "Unauthorized"), UserRecognition::No(finding));
}

#[test]
fn who_may_read_it_is_not_named() {
    for status in [200, 404] {
        assert_eq!(asked(status, ""), UserRecognition::Unnamed, "{status}");
    }
    assert_eq!(asked(403, "no"), UserRecognition::Unnamed);
    for status in [429, 500, 503, 302] {
        assert_eq!(
            asked(status, ""),
            UserRecognition::No(TrustProblem::Unclear(status)),
            "{status}"
        );
    }
}

fn compare(data: &serde_json::Value) -> Vec<TrustProblem> {
    let body = json!({"kind": "ConfigMap", "data": data}).to_string();
    compared(&names(), StatusCode::OK, body.as_bytes())
}

fn good() -> serde_json::Value {
    json!({
        "client-ca-file": "…",
        USERNAME: "[\"X-Remote-User\"]",
        UID: "[\"X-Remote-Uid\"]",
        GROUP: "[\"X-Remote-Group\"]",
        EXTRA: "[\"X-Remote-Extra-\"]",
    })
}

#[test]
fn the_same_names_in_any_case_are_good() {
    assert_eq!(compare(&good()), []);
    let mut loud = good();
    loud[USERNAME] = json!("[\"X-REMOTE-USER\", \"x-remote-user\"]");
    assert_eq!(compare(&loud), []);
}

#[test]
fn an_apiserver_that_believes_no_uid_is_good_too() {
    for uid in [json!(""), json!("[]")] {
        let mut data = good();
        data[UID] = uid;
        assert_eq!(compare(&data), []);
    }
    let mut data = good();
    data.as_object_mut().unwrap().remove(UID);
    assert_eq!(compare(&data), []);
}

#[test]
fn each_list_that_differs_is_named() {
    for (field, key) in [
        (USERNAME, "serving.requestHeaderUsernameHeaders"),
        (UID, "serving.requestHeaderUidHeaders"),
        (GROUP, "serving.requestHeaderGroupHeaders"),
        (EXTRA, "serving.requestHeaderExtraHeaderPrefixes"),
    ] {
        for value in ["[\"X-Foo\"]", "[\"X-Remote-User\", \"X-Remote-Uid\"]"] {
            let mut data = good();
            data[field] = json!(value);
            let findings = compare(&data);
            assert_eq!(findings.len(), 1, "{findings:?}");
            let said = findings[0].to_string();
            assert!(said.contains(key) && said.contains(field), "{said}");
        }
    }
    let mut data = good();
    data[GROUP] = json!("[\"X-Foo-Group\",\"X-Remote-Group\"]");
    let said = compare(&data)[0].to_string();
    assert!(
        said.starts_with(
            "serving.requestHeaderGroupHeaders is [x-remote-group], but [x-foo-group, x-remote-group] under"
        ),
        "{said}"
    );
}

#[test]
fn a_config_map_without_names_is_not_good() {
    assert_eq!(
        compare(&json!({"client-ca-file": "…"})),
        [TrustProblem::NoNames]
    );
    assert_eq!(compare(&json!({})), [TrustProblem::NoNames]);
    let mut data = good();
    data[GROUP] = json!("nonsense");
    assert!(matches!(compare(&data)[..], [TrustProblem::Malformed(_)]));
    let nonsense = compared(&names(), StatusCode::OK, b"nonsense");
    assert!(matches!(nonsense[..], [TrustProblem::Malformed(_)]));
}

#[test]
fn a_config_map_that_cannot_be_read_is_not_good() {
    for (status, finding) in [
        (404, TrustProblem::NoConfigMap),
        (403, TrustProblem::NotInGroup(403)),
        (401, TrustProblem::NotInGroup(401)),
        (500, TrustProblem::Unclear(500)),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(compared(&names(), status, b"{}"), [finding]);
    }
}
