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
    recognised("nobody-1", status, body.as_bytes())
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
        let user = UserRecognition::TakenFor(other.to_owned());
        assert_eq!(asked(403, &forbidden(other)), user);
    }
}

#[test]
fn a_401_says_that_the_credentials_are_rejected() {
    let found = asked(401, "Unauthorized");
    assert!(found.problem(&names()).contains("x-remote-user"));
    assert_eq!(found, UserRecognition::Rejected);
}

#[test]
fn who_may_read_it_is_not_named() {
    for status in [200, 404] {
        assert_eq!(asked(status, ""), UserRecognition::Unnamed, "{status}");
    }
    assert_eq!(asked(403, "no"), UserRecognition::Unnamed);
    for status in [429, 500, 503, 302] {
        let unclear = UserRecognition::Unclear(StatusCode::from_u16(status).unwrap());
        assert_eq!(asked(status, ""), unclear, "{status}");
    }
}

fn read(data: &serde_json::Value) -> Result<PublishedNames, TrustReport> {
    let body = json!({"kind": "ConfigMap", "data": data}).to_string();
    published(StatusCode::OK, body.as_bytes())
}

fn compare(data: &serde_json::Value) -> Vec<String> {
    differences(&names(), &read(data).unwrap())
}

const USERNAME: &str = "requestheader-username-headers";
const UID: &str = "requestheader-uid-headers";
const GROUP: &str = "requestheader-group-headers";
const EXTRA: &str = "requestheader-extra-headers-prefix";

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
    assert_eq!(compare(&good()), [""; 0]);
    let mut loud = good();
    loud[USERNAME] = json!("[\"X-REMOTE-USER\", \"x-remote-user\"]");
    assert_eq!(compare(&loud), [""; 0]);
}

#[test]
fn an_apiserver_that_reads_no_uid_is_good_too() {
    for uid in [json!(""), json!("[]")] {
        let mut data = good();
        data[UID] = uid;
        assert_eq!(compare(&data), [""; 0]);
    }
    let mut data = good();
    data.as_object_mut().unwrap().remove(UID);
    assert_eq!(compare(&data), [""; 0]);
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
            let warnings = compare(&data);
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            let said = &warnings[0];
            assert!(said.contains(key) && said.contains(field), "{said}");
        }
    }
    let mut data = good();
    data[GROUP] = json!("[\"X-Foo-Group\",\"X-Remote-Group\"]");
    let said = compare(&data).remove(0);
    assert!(
        said.starts_with(
            "serving.requestHeaderGroupHeaders is [x-remote-group], but [x-foo-group, x-remote-group] under"
        ),
        "{said}"
    );
    data[GROUP] = json!(format!("[\"{}\"]", "x".repeat(10_000)));
    assert!(compare(&data)[0].len() < 1000);
}

#[test]
fn whoever_writes_the_config_map_can_only_cause_warnings() {
    let mut many = good();
    let names: Vec<_> = (0..100).map(|number| format!("X-{number}")).collect();
    many[GROUP] = json!(json!(names).to_string());
    assert!(compare(&many)[0].contains("too many headers"));
    for data in [json!({"client-ca-file": "…"}), json!({})] {
        assert!(compare(&data)[0].contains("names no header"));
    }
    let mut nonsense = good();
    nonsense[GROUP] = json!("nonsense");
    let malformed = "cannot be understood: ";
    for (answer, said) in [
        (read(&nonsense), malformed),
        (read(&json!({"x": 1})), malformed),
        (published(StatusCode::OK, b"nonsense"), malformed),
        (published(StatusCode::NOT_FOUND, b"{}"), "is not there"),
    ] {
        let report = answer.unwrap_err();
        assert!(report.warnings[0].contains(said), "{report:?}");
        assert_eq!(report.problems, [""; 0]);
    }
}

#[test]
fn a_config_map_that_cannot_be_read_is_not_good() {
    for (status, said) in [
        (403, "answers 403 to apiServer.internalUser"),
        (401, "answers 401 to apiServer.internalUser"),
        (500, "answers 500 when"),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        let report = published(status, b"{}").unwrap_err();
        assert!(report.problems[0].contains(said), "{report:?}");
    }
}

fn doubted(ours: &RequestHeaders, data: &serde_json::Value) -> Vec<DoubtfulName> {
    doubtful(ours, &read(data).unwrap())
}

fn named(name: &'static str, list: NameList, configured: bool) -> DoubtfulName {
    DoubtfulName {
        name: HeaderName::from_static(name),
        list,
        configured,
    }
}

#[test]
fn only_names_that_decide_who_users_are_and_stay_in_requests_are_asked_for() {
    assert_eq!(doubted(&names(), &good()), []);
    let mut data = good();
    data[USERNAME] = json!("[\"Accept\", \"X-Who\", \"X-Remote-Group\", \"X-Remote-User\"]");
    data[GROUP] = json!("[\"Impersonate-Group\", \"X-Team\", \"X-Remote-Extra-Team\"]");
    data[UID] = json!("[\"Authorization\"]");
    data[EXTRA] = json!("[\"\", \"Acc\"]");
    assert_eq!(
        doubted(&names(), &data),
        [
            named("accept", NameList::Username, false),
            // Who is in a group would be taken for a user of its name.
            named("x-remote-group", NameList::Username, false),
            named("impersonate-group", NameList::Group, false),
        ]
    );
}

#[test]
fn what_the_configuration_has_besides_is_asked_for_but_the_first_that_was_accepted() {
    let mut ours = names();
    ours.username.push(HeaderName::from_static("x-who"));
    ours.group.insert(0, HeaderName::from_static("x-team"));
    let expected = [
        named("x-who", NameList::Username, true),
        named("x-remote-group", NameList::Group, true),
    ];
    let mut data = good();
    data[GROUP] = json!("[\"X-Team\"]");
    assert_eq!(doubted(&ours, &data), expected);
    assert_eq!(doubted(&ours, &json!({})), expected);
}

#[test]
fn only_what_was_seen_of_the_apiserver_is_a_problem() {
    let surplus = || named("accept", NameList::Group, false);
    let lacking = || named("x-who", NameList::Username, true);
    for (name, is_read, words) in [
        (surplus(), Some(true), "takes accept for"),
        (lacking(), Some(false), "ignores x-who"),
    ] {
        let said = finding(&name, is_read).unwrap();
        assert!(said.contains(words), "{said}");
    }
    for (name, is_read) in [
        (surplus(), Some(false)),
        (surplus(), None),
        (lacking(), Some(true)),
        (lacking(), None),
    ] {
        assert_eq!(finding(&name, is_read), None);
    }
    for (status, allowed) in [
        (200, true),
        (404, true),
        (406, true),
        (400, false),
        (401, false),
        (403, false),
        (417, false),
        (500, false),
    ] {
        assert_eq!(
            was_allowed(StatusCode::from_u16(status).unwrap()),
            allowed,
            "{status}"
        );
    }
}
