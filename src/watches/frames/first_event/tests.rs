use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::kube::envelope::wrap_object;
use crate::watches::bookmark;
use crate::watches::follower::ObjectType;

const FORMATS: [FrameFormat; 3] = [FrameFormat::Json, FrameFormat::Protobuf, FrameFormat::Cbor];

/// An ERROR event as kube-apiserver writes it.
fn error(format: FrameFormat, code: i32) -> Vec<u8> {
    match format {
        FrameFormat::Json => json_line(
            &json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "message": "too old resource version: 1 (9)", "reason": "Expired", "code": code}),
        ),
        FrameFormat::Protobuf => {
            let status = Status {
                message: Some("too old resource version: 1 (9)".to_owned()),
                code: Some(code),
                ..Status::default()
            };
            framed(&wrap_object("v1", "Status", &status))
        }
        FrameFormat::Cbor => cbor_event("ERROR", &cbor_object("Status", code), true),
    }
}

/// An object as kube-apiserver writes it.
fn cbor_object(kind: &str, code: i32) -> Vec<u8> {
    let mut object = minicbor::Encoder::new(Vec::new());
    let written = |object: &mut minicbor::Encoder<Vec<u8>>| {
        object.tag(minicbor::data::Tag::new(55799))?.map(4)?;
        object
            .bytes(b"message")?
            .bytes(b"too old resource version: 1 (9)")?;
        object
            .bytes(b"metadata")?
            .map(1)?
            .bytes(b"resourceVersion")?
            .bytes(b"7")?;
        object.bytes(b"kind")?.bytes(kind.as_bytes())?;
        object.bytes(b"code")?.i32(code)?;
        Ok::<_, minicbor::encode::Error<std::convert::Infallible>>(())
    };
    written(&mut object).unwrap();
    object.into_writer()
}

fn cbor_event(kind: &str, object: &[u8], type_first: bool) -> Vec<u8> {
    let length = u8::try_from(kind.len()).unwrap();
    let fields = [
        [b"\x44type".as_slice(), &[0x40 | length], kind.as_bytes()].concat(),
        [b"\x46object", object].concat(),
    ];
    let [first, second] = match type_first {
        true => [&fields[0], &fields[1]],
        false => [&fields[1], &fields[0]],
    };
    [b"\xd9\xd9\xf7\xa2", first.as_slice(), second].concat()
}

fn json_line(object: &serde_json::Value) -> Vec<u8> {
    format!("{{\"type\":\"ERROR\",\"object\":{object}}}\n").into_bytes()
}

fn framed(raw: &[u8]) -> Vec<u8> {
    let raw = raw.to_vec().into();
    let event = protobuf::WatchEvent {
        kind: "ERROR".to_owned(),
        object: Some(protobuf::RawExtension { raw }),
    };
    let event = event.encode_to_vec();
    let length = u32::try_from(event.len()).unwrap();
    [&length.to_be_bytes()[..], &event].concat()
}

/// What is decided of a stream that comes in these pieces, and after how many of its bytes.
fn look(format: FrameFormat, pieces: &[&[u8]]) -> (FirstLook, usize) {
    let mut first = FirstEvent::new(format);
    let mut length = 0;
    for piece in pieces {
        length += piece.len();
        match first.look(Bytes::copy_from_slice(piece)) {
            FirstLook::Undecided => assert_eq!(first.is_begun(), length > 0),
            decided => return (decided, length),
        }
    }
    assert_eq!(first.take_kept(), pieces.concat());
    (FirstLook::Undecided, length)
}

#[test]
fn the_code_of_an_error_is_read_and_its_bytes_are_kept_as_they_are() {
    for format in FORMATS {
        for code in [410, 500, 0] {
            let error = error(format, code);
            let expected = FirstLook::Error(Some(code), error.clone().into());
            assert_eq!(look(format, &[&error]), (expected, error.len()));
            let bytes: Vec<&[u8]> = error.chunks(1).collect();
            let expected = FirstLook::Error(Some(code), error.clone().into());
            assert_eq!(look(format, &bytes), (expected, error.len()));
        }
    }
}

#[test]
fn the_status_of_an_answer_becomes_an_event() {
    let pretty = b"{\n  \"kind\": \"Status\",\n  \"code\": 410\n}\n";
    let status = Status {
        code: Some(410),
        ..Status::default()
    };
    let enveloped = wrap_object("v1", "Status", &status);
    for (format, answer) in [
        (FrameFormat::Json, pretty.as_slice()),
        (FrameFormat::Protobuf, &enveloped),
        (FrameFormat::Cbor, &cbor_object("Status", 410)),
    ] {
        let event = format.error_event(answer).unwrap();
        let mut boundary = super::super::FrameBoundary::new(format);
        boundary.passed(&event);
        assert!(boundary.is_at_boundary());
        let expected = FirstLook::Error(Some(410), event.clone());
        assert_eq!(look(format, &[&event]).0, expected);
    }
    assert_eq!(FrameFormat::Json.error_event(&enveloped), None);
    assert_eq!(FrameFormat::Protobuf.error_event(pretty), None);
    assert_eq!(FrameFormat::Json.error_event(b""), None);
}

#[test]
fn what_follows_an_error_is_kept_with_it() {
    for format in FORMATS {
        let more = [error(format, 410), b"and more".to_vec()].concat();
        let expected = FirstLook::Error(Some(410), more.clone().into());
        assert_eq!(look(format, &[&more]).0, expected);
    }
}

#[test]
fn an_event_passes_at_once_and_is_not_copied() {
    for format in FORMATS {
        let pod = ObjectType {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
        };
        let bookmark = bookmark::frame(format, &pod, 7).unwrap();
        let mut first = FirstEvent::new(format);
        let FirstLook::NoError(passed) = first.look(bookmark.clone()) else {
            panic!("{format:?}");
        };
        assert_eq!(passed.as_ptr(), bookmark.as_ptr());
        assert!(!first.is_begun());
    }
}

#[test]
fn an_event_passes_as_soon_as_it_cannot_be_an_error() {
    for (format, event, decided) in [
        (
            FrameFormat::Json,
            br#"{"type":"ADDED","object":"#.as_slice(),
            10,
        ),
        (FrameFormat::Json, br#"{"type":"ERRORS","object":"#, 15),
        (FrameFormat::Json, b"\n", 1),
        (FrameFormat::Json, br#"{"object":{"type":"ERROR""#, 3),
        (FrameFormat::Protobuf, b"\0\0\0\x20\x0a\x05ADDED", 7),
        (FrameFormat::Protobuf, b"\0\0\0\x20\x0a\x06ERRORS", 6),
        (FrameFormat::Protobuf, b"\0\0\0\x20\x12\x05ERROR", 5),
    ] {
        let bytes: Vec<&[u8]> = event.chunks(1).collect();
        let passed = Bytes::copy_from_slice(&event[..decided]);
        assert_eq!(look(format, &bytes), (FirstLook::NoError(passed), decided));
    }
}

#[test]
fn an_error_that_cannot_be_read_has_no_code() {
    let status = json!({"kind": "Status", "code": "410"});
    let other = json!({"kind": "Pod", "code": 410});
    let large = json!({"kind": "Status", "code": 1_u64 << 40});
    for line in [
        json_line(&status),
        json_line(&other),
        json_line(&large),
        json_line(&json!({"kind": "Status"})),
        json_line(&json!(null)),
        b"{\"type\":\"ERROR\"\n".to_vec(),
        b"{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"code\":410}\n".to_vec(),
    ] {
        let expected = FirstLook::Error(None, line.clone().into());
        assert_eq!(look(FrameFormat::Json, &[&line]).0, expected);
    }
    let status = Status {
        code: Some(410),
        ..Status::default()
    };
    for frame in [
        framed(&wrap_object("v1", "Pod", &status)),
        framed(&status.encode_to_vec()),
        framed(b"k8s\0\xff"),
        framed(b""),
        b"\0\0\0\x07\x0a\x05ERROR".to_vec(),
    ] {
        let expected = FirstLook::Error(None, frame.clone().into());
        assert_eq!(look(FrameFormat::Protobuf, &[&frame]).0, expected);
    }
}

/// In CBOR the type may come after the object.
#[test]
fn an_error_in_cbor_is_known_at_its_end() {
    let expired = cbor_event("ERROR", &cbor_object("Status", 410), false);
    let bytes: Vec<&[u8]> = expired.chunks(1).collect();
    let expected = FirstLook::Error(Some(410), expired.clone().into());
    assert_eq!(look(FrameFormat::Cbor, &bytes), (expected, expired.len()));
    let added = cbor_event("ADDED", &cbor_object("Status", 410), false);
    let bytes: Vec<&[u8]> = added.chunks(1).collect();
    let expected = FirstLook::NoError(added.clone().into());
    assert_eq!(look(FrameFormat::Cbor, &bytes), (expected, added.len()));
    let other = cbor_event("ERROR", &cbor_object("Pod", 410), true);
    let expected = FirstLook::Error(None, other.clone().into());
    assert_eq!(look(FrameFormat::Cbor, &[&other]).0, expected);
    let long = [
        b"\xd9\xd9\xf7\xa2\x46object\x5a\0\x10\0\0".as_slice(),
        &[0; LIMIT],
    ]
    .concat();
    let expected = FirstLook::NoError(long.clone().into());
    assert_eq!(look(FrameFormat::Cbor, &[&long]).0, expected);
}

#[test]
fn a_length_that_is_announced_is_not_believed() {
    let event = |length: u32| [&length.to_be_bytes()[..], b"\x0a\x05ERROR"].concat();
    // Below the length of its own first field.
    for length in 0..7 {
        let end = LENGTH + usize::try_from(length).unwrap();
        let event = event(length);
        let bytes: Vec<&[u8]> = event.chunks(1).collect();
        assert_eq!(
            look(FrameFormat::Protobuf, &bytes),
            (FirstLook::NoError(event[..end].to_vec().into()), end)
        );
    }
    let endless = event(u32::MAX);
    let expected = FirstLook::Error(None, endless.clone().into());
    assert_eq!(look(FrameFormat::Protobuf, &[&endless]).0, expected);
}

#[test]
fn an_error_without_an_end_is_not_kept_for_ever() {
    for (format, beginning) in [
        (FrameFormat::Json, JSON.to_vec()),
        (
            FrameFormat::Protobuf,
            [&(1_u32 << 20).to_be_bytes()[..], PROTOBUF].concat(),
        ),
    ] {
        let piece = [b' '; 1 << 10];
        let mut pieces = vec![beginning.as_slice()];
        pieces.extend(std::iter::repeat_n(&piece[..], 100));
        let (decided, length) = look(format, &pieces);
        assert!(matches!(decided, FirstLook::Error(None, _)), "{decided:?}");
        assert!((LIMIT..=LIMIT + piece.len()).contains(&length), "{length}");
    }
    let long = json_line(&json!({"kind": "Status", "code": 410, "message": "x".repeat(LIMIT)}));
    assert!(matches!(
        look(FrameFormat::Json, &[&long]).0,
        FirstLook::Error(None, _)
    ));
}

proptest! {
    #[test]
    fn any_split_is_decided_as_the_whole(
        format in prop::sample::select(&FORMATS[..]),
        code in prop_oneof![Just(410), any::<i32>()],
        flip in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        at in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut bytes = error(format, code);
        if let Some((index, byte)) = flip {
            *index.get_mut(&mut bytes) = byte;
        }
        let mut ends: Vec<_> = at.iter().map(|at| at.index(bytes.len() + 1)).collect();
        ends.extend([0, bytes.len()]);
        ends.sort_unstable();
        let pieces: Vec<&[u8]> = ends.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect();
        let (split, read) = look(format, &pieces);
        let (whole, _) = look(format, &[&bytes]);
        match (split, whole) {
            (FirstLook::Error(split, kept), FirstLook::Error(whole, _)) => {
                prop_assert_eq!(split, whole);
                prop_assert_eq!(kept, &bytes[..read]);
            }
            (FirstLook::NoError(kept), FirstLook::NoError(_)) => prop_assert_eq!(kept, &bytes[..read]),
            (split, whole) => prop_assert_eq!(split, whole),
        }
    }
}
