use super::*;

#[test]
fn a_sign_of_life_names_where_it_comes_from_and_steers_no_terminal() {
    let item = |key: &str, value: &str| EtcdItem {
        key: key.to_owned(),
        value: value.into(),
        create_revision: 7,
        mod_revision: 42,
    };
    for (value, named) in [
        (
            r#"{"endpoint":"10.0.0.3:6443","initialized":true}"#,
            "its proxy at 10.0.0.3:6443 has a live key",
        ),
        ("\u{1b}", "its proxy at an unknown address has a live key"),
    ] {
        let live = Some(item("cp-3", value));
        let why = sign_of_life("cp-3", live, None, &[]);
        assert_eq!(why.as_deref(), Some(named));
    }
    let claims = [item("cp-3/10.0.0.9:6443\u{1b}", "")];
    let why = sign_of_life("cp-3", None, None, &claims).unwrap();
    assert!(why.contains("10.0.0.9:6443\\u{1b}"), "{why}");
    assert_eq!(sign_of_life("cp", None, None, &claims), None);
}
