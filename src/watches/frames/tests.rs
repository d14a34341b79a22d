use k8s_pb::apimachinery::pkg::runtime::TypeMeta;
use proptest::prelude::*;
use prost::Message;

use super::protobuf::Envelope;
use super::*;
use crate::kube::envelope;

/// Kind, revision, name, API version and kind of the object.
type Owned = (EventKind, i64, String, String, String);

/// What is read of a stream that comes in these pieces, and whether it was understood to its end.
fn read(format: FrameFormat, pieces: &[&[u8]]) -> (Vec<Owned>, bool, bool) {
    let mut frames = Frames::new(format);
    let (mut events, mut passed) = (Vec::new(), Vec::new());
    for piece in pieces {
        let mut data = Bytes::copy_from_slice(piece);
        let mut each = |event: Result<Event<'_>, UnknownFrame>| {
            let Ok(Event::Object(event)) = event else {
                return Ok::<_, ()>(FrameFate::EndsReading);
            };
            events.push((
                event.kind,
                event.revision,
                event.name.into_owned(),
                event.api_version.into_owned(),
                event.object_kind.into_owned(),
            ));
            Ok(FrameFate::Passes)
        };
        while let Some(passes) = frames.next(&mut data, false, &mut each).unwrap() {
            passed.extend_from_slice(&passes);
        }
        if !frames.is_read() {
            return (events, false, false);
        }
    }
    let stream = pieces.concat();
    assert!(stream.starts_with(&passed), "nothing is changed");
    assert!(frames.at_boundary() || passed.len() > HELD);
    (
        events,
        true,
        passed.len() == stream.len() && frames.at_boundary(),
    )
}

fn passes(_: Result<Event<'_>, UnknownFrame>) -> Result<FrameFate, ()> {
    Ok(FrameFate::Passes)
}

/// What passes of a piece, whatever it says.
fn next(frames: &mut Frames, piece: &[u8]) -> Vec<u8> {
    let mut data = Bytes::copy_from_slice(piece);
    let mut passed = Vec::new();
    while let Some(passing) = frames.next(&mut data, false, passes).unwrap() {
        passed.extend_from_slice(&passing);
    }
    passed
}

fn config_map() -> ObjectType {
    ObjectType {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
    }
}

fn change(revision: i64, name: &str) -> Owned {
    let owned = str::to_owned;
    (
        EventKind::Change,
        revision,
        owned(name),
        owned("v1"),
        owned("ConfigMap"),
    )
}

fn json_line(kind: &str, revision: i64, name: &str, data: &str) -> Vec<u8> {
    let metadata = serde_json::json!({"name": name, "namespace": "default", "resourceVersion": revision.to_string(),
        "managedFields": [{"fieldsV1": {"f:data": {}}}]});
    let object = serde_json::json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata,
        "data": {"metadata": data, "object": {"resourceVersion": "999"}}});
    format!("{}\n", serde_json::json!({"type": kind, "object": object})).into_bytes()
}

fn protobuf_frame(kind: &str, revision: i64, name: &str, data: &str) -> Vec<u8> {
    use k8s_pb::api::core::v1::ConfigMap;
    use k8s_pb::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    let object = ConfigMap {
        metadata: Some(ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("default".to_owned()),
            resource_version: Some(revision.to_string()),
            generation: Some(7),
            ..ObjectMeta::default()
        }),
        data: [("key".to_owned(), data.to_owned())].into_iter().collect(),
        ..ConfigMap::default()
    };
    framed(kind, &object.encode_to_vec())
}

fn framed(kind: &str, object: &[u8]) -> Vec<u8> {
    let envelope = Envelope {
        type_meta: Some(TypeMeta {
            api_version: Some("v1".to_owned()),
            kind: Some("ConfigMap".to_owned()),
        }),
        raw: object.to_vec().into(),
        ..Envelope::default()
    };
    protobuf::frame(kind, envelope::wrap(&envelope).into())
        .unwrap()
        .to_vec()
}

const FORMATS: [FrameFormat; 2] = [FrameFormat::Json, FrameFormat::Protobuf];

fn frame_of(format: FrameFormat, kind: &str, revision: i64, name: &str, data: &str) -> Vec<u8> {
    match format {
        FrameFormat::Json => json_line(kind, revision, name, data),
        FrameFormat::Protobuf => protobuf_frame(kind, revision, name, data),
    }
}

#[test]
fn the_content_type_names_the_format() {
    for (content_type, format) in [
        ("application/json", Some(FrameFormat::Json)),
        ("application/json;stream=watch", Some(FrameFormat::Json)),
        (
            "application/vnd.kubernetes.protobuf;stream=watch",
            Some(FrameFormat::Protobuf),
        ),
        (
            "application/vnd.kubernetes.protobuf; stream=watch",
            Some(FrameFormat::Protobuf),
        ),
        ("application/vnd.kubernetes.protobuf", None),
        ("application/cbor-seq", None),
        ("text/plain", None),
        ("", None),
    ] {
        let header = HeaderValue::from_static(content_type);
        let found = FrameFormat::of_content_type(&header);
        assert_eq!(found, format, "{content_type}");
    }
}

#[test]
fn events_are_read_in_every_format() {
    for format in FORMATS {
        let stream = [
            frame_of(format, "ADDED", 5, "a", "x"),
            frame_of(format, "MODIFIED", 7, "a", "\u{e9}\"\n\\"),
            frame_of(format, "DELETED", 8, "a", ""),
        ]
        .concat();
        let expected = vec![change(5, "a"), change(7, "a"), change(8, "a")];
        assert_eq!(
            read(format, &[&stream]),
            (expected, true, true),
            "{format:?}"
        );
    }
}

#[test]
fn the_middle_of_a_frame_is_no_boundary() {
    for format in FORMATS {
        let frame = frame_of(format, "ADDED", 5, "a", "x");
        for end in 1..frame.len() {
            assert_eq!(
                read(format, &[&frame[..end]]),
                (vec![], true, false),
                "{format:?} {end}"
            );
        }
    }
}

#[test]
fn what_is_not_understood_makes_the_rest_unknown() {
    let error =
        r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"code":410}}"#;
    let table = r#"{"type":"ADDED","object":{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":""}}}"#;
    let other = r#"{"type":"RENAMED","object":{"kind":"A","apiVersion":"v1","metadata":{"resourceVersion":"3"}}}"#;
    let signed = r#"{"type":"ADDED","object":{"kind":"A","apiVersion":"v1","metadata":{"resourceVersion":"+3"}}}"#;
    let good = json_line("ADDED", 5, "a", "x");
    for bad in [error, table, other, signed, "", "{", "[]", "null"] {
        let stream = [&good[..], bad.as_bytes(), b"\n", &good].concat();
        assert_eq!(
            read(FrameFormat::Json, &[&stream]),
            (vec![change(5, "a")], false, false),
            "{bad}"
        );
    }
    let good = protobuf_frame("ADDED", 5, "a", "x");
    for bad in [
        framed("ERROR", b""),
        framed("ADDED", b""),
        framed("ADDED", b"\xff"),
        vec![0, 0, 0, 1, 255],
        vec![0; 4],
    ] {
        let stream = [&good[..], &bad, &good].concat();
        assert_eq!(
            read(FrameFormat::Protobuf, &[&stream]).0.len(),
            1,
            "{bad:?}"
        );
        assert!(!read(FrameFormat::Protobuf, &[&stream]).1, "{bad:?}");
    }
}

/// Events of a watch that asks for tables, as kube-apiserver v1.20.2 writes them.
#[test]
fn rows_of_tables_name_their_objects() {
    let stream = br#"{"type":"MODIFIED","object":{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"198"},"columnDefinitions":null,"rows":[{"cells":["a",1,"18s"],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a","namespace":"default","resourceVersion":"198"}}}]}}
{"type":"MODIFIED","object":{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"199"},"columnDefinitions":null,"rows":[{"cells":["b",1,"18s"]}]}}
{"type":"BOOKMARK","object":{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"199"},"columnDefinitions":null,"rows":[{"cells":["",0,"\u003cunknown\u003e"],"object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"199","creationTimestamp":null}}}]}}
{"type":"ADDED","object":{"kind":"Widget","apiVersion":"example.test/v1","metadata":{"name":"w","resourceVersion":"200"},"rows":5}}
"#;
    let (events, understood, whole) = read(FrameFormat::Json, &[stream]);
    assert!(understood && whole);
    let events: Vec<_> = events
        .iter()
        .map(|(kind, revision, name, ..)| (*kind, *revision, &**name))
        .collect();
    let expected = [
        (EventKind::Change, 198, "a"),
        (EventKind::Change, 199, ""),
        (EventKind::Bookmark, 199, ""),
        (EventKind::Change, 200, "w"),
    ];
    assert_eq!(events, expected);
    for rows in ["null", "[]", "[{},{}]", "5"] {
        let table = format!(
            r#"{{"type":"ADDED","object":{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"3"}},"rows":{rows}}}}}"#
        );
        let understood = read(FrameFormat::Json, &[table.as_bytes(), b"\n"]).1;
        assert_eq!(understood, rows == "null", "{rows}");
    }
}

#[test]
fn a_frame_that_is_too_large_is_not_kept() {
    let announced = u32::try_from(LIMIT + 1).unwrap().to_be_bytes();
    assert!(!read(FrameFormat::Protobuf, &[&announced]).1);
    let piece = vec![b' '; 64 << 10];
    let mut frames = Frames::new(FrameFormat::Json);
    let mut kept = 0;
    for _ in 0..1000 {
        let each = |event: Result<Event<'_>, UnknownFrame>| {
            event.map_or(Ok::<_, ()>(FrameFate::EndsReading), |_| {
                Ok(FrameFate::Passes)
            })
        };
        let mut data = Bytes::copy_from_slice(&piece);
        while frames.next(&mut data, true, each).unwrap().is_some() {}
        if !frames.is_read() {
            break;
        }
        kept += piece.len();
    }
    assert!((LIMIT - piece.len()..=LIMIT).contains(&kept), "{kept}");
    assert!(frames.kept() == 0 && !frames.at_boundary());
}

#[test]
fn a_frame_passes_whole_and_a_large_one_as_it_comes() {
    for format in FORMATS {
        let [first, second] = ["a", "b"].map(|name| frame_of(format, "ADDED", 5, name, "x"));
        let mut frames = Frames::new(format);
        assert_eq!(
            next(&mut frames, &[&first[..], &second[..9]].concat()),
            first
        );
        assert!(frames.at_boundary() && frames.kept() > 0);
        assert_eq!(next(&mut frames, &second[9..]), second);

        let large = frame_of(format, "ADDED", 6, "c", &"x".repeat(2 * HELD));
        assert_eq!(next(&mut frames, &large[..HELD]), b"");
        assert_eq!(next(&mut frames, &large[HELD..HELD + 9]), large[..HELD + 9]);
        assert!(!frames.at_boundary());
        assert_eq!(next(&mut frames, &large[HELD + 9..]), large[HELD + 9..]);
        assert!(frames.at_boundary() && frames.is_read());

        // Of half a frame nothing was passed on: the stream may go on with another one.
        assert_eq!(next(&mut frames, &first[..9]), b"");
        frames.begin_again();
        assert_eq!(next(&mut frames, &second), second);
        // Nothing is kept any more: what was held passes with the rest.
        assert_eq!(next(&mut frames, &first[..9]), b"");
        frames.stop_reading();
        assert_eq!(next(&mut frames, &first[9..]), first);
    }
}

#[test]
fn large_frames_are_read() {
    let data = "x".repeat(3 << 20);
    for format in FORMATS {
        let frame = frame_of(format, "ADDED", 5, "a", &data);
        let pieces: Vec<&[u8]> = frame.chunks(16 << 10).collect();
        assert_eq!(read(format, &pieces), (vec![change(5, "a")], true, true));
    }
}

/// Bytes, cut at these places.
fn cut<'a>(bytes: &'a [u8], at: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<_> = at.iter().map(|at| at.index(bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|ends| &bytes[ends[0]..ends[1]])
        .collect()
}

proptest! {
    #[test]
    fn any_split_reads_as_the_whole(
        format in prop::sample::select(&FORMATS[..]),
        events in prop::collection::vec((0..5_usize, 1..1000_i64, "[a-z]{0,9}", ".{0,40}"), 0..8),
        tail in prop::collection::vec(any::<u8>(), 0..12),
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let kinds = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"];
        let mut stream: Vec<u8> = events.iter().flat_map(|(kind, revision, name, data)| match kind {
            3 => format.bookmark(&config_map(), *revision).unwrap().to_vec(),
            kind => frame_of(format, kinds[*kind], *revision, name, data),
        }).collect();
        stream.extend(tail);
        prop_assert_eq!(read(format, &cut(&stream, &at)), read(format, &[&stream]));
    }

    #[test]
    fn lengths_alone_tell_the_same_boundaries(
        format in prop::sample::select(&FORMATS[..]),
        names in prop::collection::vec("[a-z]{1,300}", 1..5),
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let stream: Vec<u8> = names.iter().flat_map(|name| frame_of(format, "ADDED", 1, name, "")).collect();
        let (mut frames, mut ends) = (Frames::new(format), Frames::new(format));
        ends.stop_reading();
        let (mut whole, mut taken) = (Vec::new(), 0);
        for piece in cut(&stream, &at) {
            whole.extend(next(&mut frames, piece));
            prop_assert_eq!(next(&mut ends, piece), piece);
            taken += piece.len();
            prop_assert_eq!(ends.at_boundary(), whole.len() == taken);
            prop_assert!(frames.at_boundary() && stream.starts_with(&whole));
        }
        prop_assert!(ends.at_boundary());
    }

    #[test]
    fn any_bytes_in_any_split_read_as_the_whole(
        format in prop::sample::select(&FORMATS[..]),
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(b'\n')], 0..200),
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        prop_assert_eq!(read(format, &cut(&bytes, &at)), read(format, &[&bytes]));
    }
}

fn bookmark_of(api_version: &str, kind: &str) -> ObjectType {
    ObjectType {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
    }
}

fn json_bookmark(object_type: &ObjectType) -> serde_json::Value {
    let frame = FrameFormat::Json.bookmark(object_type, 12).unwrap();
    let text = std::str::from_utf8(&frame).unwrap();
    assert!(text.ends_with("}\n") && text.matches('\n').count() == 1);
    serde_json::from_str(text).unwrap()
}

#[test]
fn bookmarks_in_json_are_as_kube_apiserver_writes_them() {
    let value = json_bookmark(&bookmark_of("v1", "ConfigMap"));
    assert_eq!(value["type"], "BOOKMARK");
    assert_eq!(value["object"]["metadata"]["resourceVersion"], "12");
}

#[test]
fn a_bookmark_of_tables_has_one_row_whose_object_has_only_a_revision() {
    let table = bookmark_of("meta.k8s.io/v1", "Table");
    let object = &json_bookmark(&table)["object"];
    assert_eq!(object["kind"], "Table");
    assert_eq!(object["metadata"]["resourceVersion"], "12");
    let row = &object["rows"][0]["object"];
    assert_eq!(row["kind"], "PartialObjectMetadata");
    assert_eq!(row["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(row["metadata"]["resourceVersion"], "12");
    assert_eq!(FrameFormat::Protobuf.bookmark(&table, 12), None);
}

#[test]
fn bookmarks_can_be_read() {
    for (format, api_version, kind) in [
        (FrameFormat::Json, "apps/v1", "Deployment"),
        (FrameFormat::Json, "meta.k8s.io/v1", "PartialObjectMetadata"),
        (FrameFormat::Json, "meta.k8s.io/v1", "Table"),
        (FrameFormat::Protobuf, "apps/v1", "Deployment"),
    ] {
        let object_type = bookmark_of(api_version, kind);
        let frame = format.bookmark(&object_type, i64::MAX).unwrap();
        let (kind, api_version) = (object_type.kind, object_type.api_version);
        let expected = (
            EventKind::Bookmark,
            i64::MAX,
            String::new(),
            api_version,
            kind,
        );
        assert_eq!(read(format, &[&frame]), (vec![expected], true, true));
    }
}

fn asked_for(accept: &'static str, format: FrameFormat) -> Option<String> {
    let accept = HeaderValue::from_static(accept);
    let ObjectType { api_version, kind } = format.transformed(Some(&accept))?;
    Some(format!("{api_version} {kind}"))
}

#[test]
fn the_first_clause_of_the_answer_s_format_counts() {
    let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,\
        application/json";
    let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
        application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1,application/json";
    for (accept, format, expected) in [
        (kubectl, FrameFormat::Json, "meta.k8s.io/v1 Table"),
        (
            metadata,
            FrameFormat::Protobuf,
            "meta.k8s.io/v1 PartialObjectMetadata",
        ),
        (
            metadata,
            FrameFormat::Json,
            "meta.k8s.io/v1beta1 PartialObjectMetadata",
        ),
    ] {
        assert_eq!(asked_for(accept, format).unwrap(), expected);
    }
}

#[test]
fn plain_objects_are_of_the_resource_s_own_type() {
    for plain in [
        "application/json",
        "*/*",
        "application/vnd.kubernetes.protobuf;stream=watch,application/json",
        "application/json,application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=Table;v=v9;g=meta.k8s.io",
        "application/json;as=Other;v=v1;g=meta.k8s.io",
        "application/json;as=Table;v=v1;g=example.test",
    ] {
        assert_eq!(asked_for(plain, FrameFormat::Json), None, "{plain}");
    }
    assert_eq!(FrameFormat::Json.transformed(None), None);
}
