use super::*;

const RECORD: &str = r#"{"endpoint":"10.0.0.3:6443","binaryVersion":"v1.20.2\u001b[2J",
    "compatibilityVersion":"1.20","resources":{"v1":["pods","pods/log"],"apps/v1":["deployments"]}}"#;

#[test]
fn a_server_id_is_one_part_of_a_key() {
    for good in ["cp-3", "apiserver-tqsyvnc7rs47fayzipsuqpfg4m", "CP 3", "é"] {
        assert_eq!(server_id(good).as_deref(), Ok(good));
    }
    for bad in [
        "",
        "/",
        "a/b",
        "../live/a",
        "a\n",
        "\u{1b}[2J",
        "a\0",
        "\u{9b}",
    ] {
        assert!(server_id(bad).is_err(), "{bad:?}");
    }
}

fn described(value: &str, others: &[&str]) -> String {
    let others = others.iter().map(|value| json::read(value.as_bytes()));
    let others: Vec<_> = others.map(Result::unwrap).collect();
    describe("cp-3", value.as_bytes(), &others)
}

#[test]
fn what_will_be_dropped_is_described_and_steers_no_terminal() {
    let text = described(RECORD, &[]);
    for part in [
        "cp-3 is absent",
        "10.0.0.3:6443",
        "v1.20.2\\u{1b}[2J (1.20)",
        "3 resources in 2 group versions",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = described("\"endpoint\":\"\u{1b}[2J", &[]);
    assert!(
        text.contains("cannot be read") && text.contains("404"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn what_becomes_a_404_is_named() {
    let other =
        |resources: &str| format!(r#"{{"endpoint":"10.0.0.4:6443","resources":{resources}}}"#);
    let (pods, rest) = (
        other(r#"{"v1":["pods"]}"#),
        other(r#"{"v1":["pods/log"],"apps/v1":["deployments"]}"#),
    );
    let text = described(RECORD, &[&pods]);
    assert!(
        text.contains("No other proxy lists 2 of them (apps/v1, v1). What nobody lists is answered 503 now, and 404"),
        "{text}"
    );
    let text = described(RECORD, &[&pods, &rest]);
    assert!(
        text.contains("Other proxies list all of it, too.") && !text.contains("404"),
        "{text}"
    );
}

#[test]
fn an_unknown_id_is_answered_with_those_that_are_known() {
    let mut ids = BTreeMap::from([("cp-1".to_owned(), true), ("cp-2\u{7}".to_owned(), false)]);
    let text = unknown("cp-9", &ids);
    assert_eq!(
        text,
        "cp-9 is not known; known are: cp-1 (alive), cp-2\\u{7} (absent)"
    );
    ids.extend((0..60).map(|number| (format!("x{number:02}"), false)));
    assert!(unknown("cp-9", &ids).ends_with(", and 12 more"));
    assert!(unknown("cp-9", &BTreeMap::new()).contains("etcd.prefix"));
}
