//! The union of what peers list.

use super::*;

fn names(document: &Document) -> Vec<String> {
    let mut names = Vec::new();
    for group in &document.groups {
        for version in &group.versions {
            let mark = if version.is_stale() { " stale" } else { "" };
            names.push(format!("{}/{}{mark}", group.name(), version.name));
            names.extend(version.resources.iter().map(|it| it.name.clone()));
        }
    }
    names
}

fn verbs(others: &Document, of: (&str, &str), resource: usize) -> Vec<String> {
    let version = others.version(of.0, of.1).unwrap();
    version.resources[resource].verbs.clone()
}

#[test]
fn the_first_server_gives_the_entry_and_the_order() {
    let old = listing("old", &["apps/v1/b", "apps/v1/a", "old/v1/c"]);
    let new = listing("new", &["new/v1/d", "apps/v1/a"]);
    let others = union(&[(&new, true), (&old, true)]);
    assert_eq!(
        names(&others),
        ["new/v1", "d", "apps/v1", "a", "b", "old/v1", "c"]
    );
    assert_eq!(verbs(&others, ("apps", "v1"), 0), ["get", "new"]);
}

#[test]
fn what_only_absent_servers_list_is_stale_and_never_preferred() {
    let absent = listing("absent", &["g/v2/x", "g/v1/x", "g/v1/y", "gone/v1/z"]);
    let living = listing("living", &["g/v1/x"]);
    let others = union(&[(&absent, false), (&living, true)]);
    // A resource of the absent one stays listed in a version that is fresh.
    assert_eq!(
        names(&others),
        ["g/v1", "x", "y", "g/v2 stale", "x", "gone/v1 stale", "z"]
    );
    assert_eq!(verbs(&others, ("g", "v1"), 0), ["get", "living"]);
}

#[test]
fn a_version_whose_document_could_not_be_read_is_stale_unless_another_target_lists_it() {
    let version = |group: &str| {
        let version = Version {
            name: "v1".into(),
            freshness: STALE.into(),
            ..Version::default()
        };
        (group.to_owned(), version)
    };
    let unread = Document::from_iter(["g", "h"].map(version));
    let living = listing("living", &["h/v1/x"]);
    let others = union(&[(&unread, true), (&living, true)]);
    assert_eq!(names(&others), ["h/v1", "x", "g/v1 stale"]);
}

#[test]
fn what_is_known_by_name_only_is_filled_by_who_knows_more() {
    let mut named = listing("named", &["g/v1/x", "g/v1/x/status"]);
    let version = &mut named.groups[0].versions[0];
    version.freshness = STALE.into();
    version.resources[0].response_kind = Kind::default();
    let kept = listing("kept", &["g/v1/x", "g/v1/x/scale"]);
    let others = union(&[(&named, true), (&kept, false)]);
    assert_eq!(verbs(&others, ("g", "v1"), 0), ["get", "kept"]);
    let resource = &others.groups[0].versions[0].resources[0];
    let subresources: Vec<_> = resource.subresources.iter().map(|sub| &*sub.name).collect();
    assert_eq!(subresources, ["status", "scale"]);
}
