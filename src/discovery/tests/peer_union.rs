//! The union of what peers list.

use super::*;

fn names(document: &Document) -> Vec<String> {
    let mut names = Vec::new();
    for group in &document.groups {
        for version in &group.versions {
            let mark = if version.stale { " stale" } else { "" };
            names.push(format!("{}/{}{mark}", group.name, version.name));
            names.extend(
                version
                    .resources
                    .iter()
                    .map(|resource| resource.name.to_string()),
            );
        }
    }
    names
}

fn verbs(others: &PeerUnion, of: (&str, &str), resource: usize) -> Vec<String> {
    let version = others.document.version(of.0, of.1).unwrap();
    let verbs = version.resources[resource].verbs.iter();
    verbs.map(|verb| verb.to_string()).collect()
}

#[test]
fn the_newest_server_gives_the_entry_and_the_order() {
    let old = listing("old", &["apps/v1/b", "apps/v1/a", "old/v1/c"]);
    let new = listing("new", &["new/v1/d", "apps/v1/a"]);
    // By number, not by letter.
    let peers = [peer("a", "1.9", &old), peer("b", "1.10", &new)];
    let others = union(&peers);
    assert_eq!(
        names(&others.document),
        ["new/v1", "d", "apps/v1", "a", "b", "old/v1", "c"]
    );
    assert_eq!(verbs(&others, ("apps", "v1"), 0), ["get", "new"]);
}

#[test]
fn among_equal_versions_the_first_id_gives_the_entry_and_an_unknown_version_comes_last() {
    let [a, b, none] = ["a", "b", "none"].map(|server| listing(server, &["g/v1/x"]));
    let unknown = UnionMember {
        compatibility: None,
        ..peer("0", "", &none)
    };
    let peers = [unknown, peer("b", "1.36", &b), peer("a", "1.36", &a)];
    assert_eq!(verbs(&union(&peers), ("g", "v1"), 0), ["get", "a"]);
    let peers = [unknown, peer("b", "1.20", &b)];
    assert_eq!(verbs(&union(&peers), ("g", "v1"), 0), ["get", "b"]);
}

#[test]
fn what_only_absent_servers_list_is_stale_and_never_preferred() {
    let absent = listing("absent", &["g/v2/x", "g/v1/x", "g/v1/y", "gone/v1/z"]);
    let living = listing("living", &["g/v1/x"]);
    let absent = UnionMember {
        target: false,
        ..peer("a", "1.36", &absent)
    };
    let others = union(&[absent, peer("b", "1.20", &living)]);
    // A resource of the absent one stays listed in a version that is fresh.
    assert_eq!(
        names(&others.document),
        ["g/v1", "x", "y", "g/v2 stale", "x", "gone/v1 stale", "z"]
    );
    assert_eq!(verbs(&others, ("g", "v1"), 0), ["get", "living"]);
}

#[test]
fn a_version_whose_document_could_not_be_read_is_stale_unless_another_target_lists_it() {
    let group = |name: &str| Group {
        name: name.into(),
        versions: vec![Version {
            name: "v1".into(),
            stale: true,
            resources: Vec::new(),
        }],
    };
    let unread = Document {
        groups: vec![group("g"), group("h")],
    };
    let living = listing("living", &["h/v1/x"]);
    let others = union(&[peer("a", "1.36", &unread), peer("b", "1.20", &living)]);
    assert_eq!(names(&others.document), ["h/v1", "x", "g/v1 stale"]);
}

#[test]
fn what_is_known_by_name_only_is_filled_by_who_knows_more() {
    let mut named = listing("named", &["g/v1/x", "g/v1/x/status"]);
    let version = &mut named.groups[0].versions[0];
    version.stale = true;
    let resource = Arc::make_mut(&mut version.resources[0]);
    resource.kind = Some(Kind::default());
    resource.verbs = [].into();
    let kept = listing("kept", &["g/v1/x", "g/v1/x/scale"]);
    let kept = UnionMember {
        target: false,
        ..peer("b", "1.20", &kept)
    };
    let others = union(&[peer("a", "1.36", &named), kept]);
    assert_eq!(verbs(&others, ("g", "v1"), 0), ["get", "kept"]);
    let resource = &others.document.groups[0].versions[0].resources[0];
    let subresources: Vec<_> = resource.subresources.iter().map(|sub| &*sub.name).collect();
    assert_eq!(subresources, ["status", "scale"]);
}

#[test]
fn what_servers_share_is_kept_once() {
    let body = aggregated_body(
        AggregatedDocument::Groups,
        &listing("all", &["g/v1/x", "g/v1/x/status", "g/v1/y"]),
    );
    let mut pool = Pool::default();
    let [a, b] = [(); 2].map(|()| read::groups(&mut pool, &body).unwrap());
    let [x, y] = [&a, &b].map(|groups| &groups[0].versions[0].resources);
    assert!(x.iter().zip(y).all(|(x, y)| Arc::ptr_eq(x, y)));
    assert!(Arc::ptr_eq(&x[0].verbs, &x[1].verbs));
}
