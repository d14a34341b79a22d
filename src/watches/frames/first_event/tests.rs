use k8s_pb::apimachinery::pkg::apis::meta::v1::Status;
use proptest::prelude::*;
use prost::Message;
use serde_json::json;

use super::*;
use crate::kube::envelope::wrap_object;
use crate::watches::frames::FrameFate;
use crate::watches::frames::protobuf::LENGTH;
use crate::watches::frames::{Frames, ObjectType};

const FORMATS: [FrameFormat; 2] = [FrameFormat::Json, FrameFormat::Protobuf];

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
    }
}

fn json_line(object: &serde_json::Value) -> Vec<u8> {
    format!("{{\"type\":\"ERROR\",\"object\":{object}}}\n").into_bytes()
}

fn framed(raw: &[u8]) -> Vec<u8> {
    protobuf::frame("ERROR", Bytes::copy_from_slice(raw))
        .unwrap()
        .to_vec()
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
    ] {
        let event = format.error_event(answer).unwrap();
        let mut frames = Frames::new(format);
        let each = |read: Result<Event<'_>, _>| {
            assert_eq!(read, Ok(Event::Error(Some(410))));
            Ok::<_, ()>(FrameFate::Passes)
        };
        assert_eq!(
            frames.next(&mut event.clone(), false, each),
            Ok(Some(event.clone()))
        );
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
        let bookmark = format.bookmark(&pod, 7).unwrap();
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

#[test]
fn a_length_that_is_announced_is_not_relied_on() {
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
    let rest = [b' '; LIMIT];
    let expected = FirstLook::Error(None, [&endless[..], &rest].concat().into());
    assert_eq!(look(FrameFormat::Protobuf, &[&endless, &rest]).0, expected);
}

#[test]
fn an_error_without_an_end_is_not_kept_for_ever() {
    for (format, beginning) in [
        (FrameFormat::Json, json::ERROR.to_vec()),
        (
            FrameFormat::Protobuf,
            [&(1_u32 << 20).to_be_bytes()[..], protobuf::ERROR].concat(),
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
