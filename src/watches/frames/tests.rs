use proptest::prelude::*;
use prost::Message;

use super::protobuf::{Envelope, RawExtension, WatchEvent, WireTypeMeta};
use super::*;
use crate::kube::envelope::MAGIC;
use crate::watches::bookmark;
use crate::watches::follower::ObjectType;

/// Kind, revision, namespace, name, API version and kind of the object.
type Owned = (EventKind, i64, String, String, String, String);

/// What is read of a stream that comes in these pieces, and whether it was understood to its end.
fn read(format: FrameFormat, pieces: &[&[u8]]) -> (Vec<Owned>, bool, bool) {
    let mut frames = Frames::new(format);
    let mut events = Vec::new();
    for piece in pieces {
        let taken = frames.take(&Bytes::copy_from_slice(piece), |event| {
            events.push((
                event.kind,
                event.revision,
                event.namespace.into_owned(),
                event.name.into_owned(),
                event.api_version.into_owned(),
                event.object_kind.into_owned(),
            ));
            Ok(())
        });
        if taken.is_err() {
            return (events, false, false);
        }
    }
    (events, true, frames.at_boundary())
}

fn config_map() -> ObjectType {
    ObjectType {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
    }
}

fn change(revision: i64, namespace: &str, name: &str) -> Owned {
    let owned = str::to_owned;
    (
        EventKind::Change,
        revision,
        owned(namespace),
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
        type_meta: Some(WireTypeMeta {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
        }),
        raw: object.to_vec().into(),
        ..Envelope::default()
    };
    let raw = [MAGIC, &envelope.encode_to_vec()].concat().into();
    let event = WatchEvent {
        kind: kind.to_owned(),
        object: Some(RawExtension { raw }),
    };
    let event = event.encode_to_vec();
    [
        &u32::try_from(event.len()).unwrap().to_be_bytes()[..],
        &event,
    ]
    .concat()
}

/// As kube-apiserver writes it: every string is a byte string, and fields come in any order.
fn cbor_item(kind: &str, revision: i64, name: &str, data: &str) -> Vec<u8> {
    let mut item = minicbor::Encoder::new(Vec::new());
    let tag = minicbor::data::Tag::new(55799);
    let written = |item: &mut minicbor::Encoder<Vec<u8>>| {
        item.tag(tag)?.map(2)?.bytes(b"object")?.tag(tag)?.map(4)?;
        item.bytes(b"data")?.map(3)?;
        item.bytes(b"x")?.bytes(data.as_bytes())?;
        item.bytes(b"metadata")?.array(2)?.f64(0.5)?.null()?;
        item.str("numbers")?
            .array(3)?
            .i64(-70_000)?
            .bool(true)?
            .u64(5_000_000_000)?;
        item.bytes(b"kind")?
            .bytes(b"ConfigMap")?
            .bytes(b"apiVersion")?
            .bytes(b"v1")?;
        item.bytes(b"metadata")?.map(4)?;
        item.bytes(b"resourceVersion")?
            .bytes(revision.to_string().as_bytes())?;
        item.bytes(b"labels")?
            .map(0)?
            .bytes(b"name")?
            .bytes(name.as_bytes())?;
        item.bytes(b"namespace")?.str("default")?;
        item.bytes(b"type")?.bytes(kind.as_bytes())?;
        Ok::<_, minicbor::encode::Error<std::convert::Infallible>>(())
    };
    written(&mut item).unwrap();
    item.into_writer()
}

const FORMATS: [FrameFormat; 3] = [FrameFormat::Json, FrameFormat::Protobuf, FrameFormat::Cbor];

fn frame_of(format: FrameFormat, kind: &str, revision: i64, name: &str, data: &str) -> Vec<u8> {
    match format {
        FrameFormat::Json => json_line(kind, revision, name, data),
        FrameFormat::Protobuf => protobuf_frame(kind, revision, name, data),
        FrameFormat::Cbor => cbor_item(kind, revision, name, data),
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
        ("application/cbor-seq", Some(FrameFormat::Cbor)),
        ("application/cbor", None),
        ("text/plain", None),
        ("", None),
    ] {
        assert_eq!(FrameFormat::of(content_type), format, "{content_type}");
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
        let expected = vec![
            change(5, "default", "a"),
            change(7, "default", "a"),
            change(8, "default", "a"),
        ];
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
            (vec![change(5, "default", "a")], false, false),
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
        .map(|(kind, revision, namespace, name, ..)| (*kind, *revision, &**namespace, &**name))
        .collect();
    let expected = [
        (EventKind::Change, 198, "default", "a"),
        (EventKind::Change, 199, "", ""),
        (EventKind::Bookmark, 199, "", ""),
        (EventKind::Change, 200, "", "w"),
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

/// A bookmark and an event of an apiserver of k8s.io/apiserver 0.36.
#[test]
fn cbor_of_a_real_apiserver_is_read_at_any_split() {
    let stream = b"\xd9\xd9\xf7\xa2DtypeEADDEDFobject\xd9\xd9\xf7\xa3DkindIConfigMapJapiVersionBv1Hmetadata\xa5CuidX$38b233ac-2325-4e19-b419-5180e4cc82edOresourceVersionA3QcreationTimestampT2026-11-22T20:23:15ZDnameAaInamespaceGdefault\xd9\xd9\xf7\xa2Fobject\xd9\xd9\xf7\xa3DkindIConfigMapJapiVersionBv1Hmetadata\xa1OresourceVersionB17DtypeHBOOKMARK";
    let mut expected = vec![change(3, "default", "a"), change(17, "", "")];
    expected[1].0 = EventKind::Bookmark;
    for at in 0..stream.len() {
        let (first, second) = stream.split_at(at);
        assert_eq!(
            read(FrameFormat::Cbor, &[first, second]),
            (expected.clone(), true, true),
            "{at}"
        );
    }
}

#[test]
fn cbor_that_is_not_read_makes_the_rest_unknown() {
    let good = cbor_item("ADDED", 5, "a", "x");
    let deep = vec![0x81; 1000];
    for bad in [
        cbor_item("ERROR", 6, "a", "x"),
        // Indefinite lengths, a reserved length, a string and a map that are too long.
        b"\xbf\xff".to_vec(),
        b"\x5f\xff".to_vec(),
        b"\x1c".to_vec(),
        b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(),
        b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(),
        deep,
        b"\xa0".to_vec(),
        b"\x01".to_vec(),
    ] {
        let stream = [&good[..], &bad, &good].concat();
        let (events, understood, _) = read(FrameFormat::Cbor, &[&stream]);
        assert_eq!((events.len(), understood), (1, false), "{bad:?}");
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
        match frames.take(&Bytes::copy_from_slice(&piece), |_| Ok(())) {
            Ok(()) => kept += piece.len(),
            Err(UnknownFrame) => break,
        }
    }
    assert!((LIMIT - piece.len()..=LIMIT).contains(&kept), "{kept}");
}

#[test]
fn large_frames_are_read() {
    let data = "x".repeat(3 << 20);
    for format in FORMATS {
        let frame = frame_of(format, "ADDED", 5, "a", &data);
        let pieces: Vec<&[u8]> = frame.chunks(16 << 10).collect();
        assert_eq!(
            read(format, &pieces),
            (vec![change(5, "default", "a")], true, true)
        );
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
            3 => bookmark::frame(format, &config_map(), *revision).unwrap().to_vec(),
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
        let (mut frames, mut boundary) = (Frames::new(format), FrameBoundary::new(format));
        for piece in cut(&stream, &at) {
            frames.take(&Bytes::copy_from_slice(piece), |_| Ok(())).unwrap();
            boundary.passed(piece);
            prop_assert_eq!(boundary.is_at_boundary(), frames.at_boundary());
        }
        prop_assert!(boundary.is_at_boundary());
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
