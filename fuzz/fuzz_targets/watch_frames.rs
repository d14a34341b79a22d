//! The answer to a watch: however it is split, it reads as the whole. The first bytes say what it is said to be, in how
//! many pieces it comes, and how long each of them is.
#![no_main]

use bytes::Bytes;
use kube_interop_proxy::watches::follower::Follower;
use kube_interop_proxy::watches::frames::first_event::{FirstEvent, FirstLook};
use kube_interop_proxy::watches::frames::{Event, FrameFate, FrameFormat, Frames, UnknownFrame};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [said, count, rest @ ..] = data else {
        return;
    };
    let format = match said % 2 {
        0 => FrameFormat::Json,
        _ => FrameFormat::Protobuf,
    };
    let (lengths, stream) = rest.split_at(usize::from(*count).min(rest.len()));
    let stream = Bytes::copy_from_slice(stream);
    let mut pieces = Vec::new();
    let mut rest = stream.clone();
    for length in lengths {
        pieces.push(rest.split_to(usize::from(*length).min(rest.len())));
    }
    pieces.push(rest);
    assert_eq!(
        look(format, &pieces),
        look(format, std::slice::from_ref(&stream))
    );
    assert_eq!(read(format, &pieces), read(format, &[stream]));
    let mut follower = Follower::new(format, Some(1));
    for mut piece in pieces {
        while follower
            .next(&mut piece)
            .expect("no server goes on")
            .is_some()
        {}
    }
    let position = follower.position();
    assert!(position.is_none_or(|position| position.revision >= 1));
});

/// The code of the ERROR event that comes first; `None`: no such event comes first.
fn look(format: FrameFormat, pieces: &[Bytes]) -> Option<Option<i32>> {
    let mut first = FirstEvent::new(format);
    for piece in pieces {
        match first.look(piece.clone()) {
            FirstLook::Undecided => {}
            FirstLook::NoError(_) => return None,
            FirstLook::Error(code, _) => return Some(code),
        }
    }
    None
}

/// The revisions of the events, and whether it was understood and ends with a frame.
fn read(format: FrameFormat, pieces: &[Bytes]) -> (Vec<i64>, Option<bool>) {
    let mut frames = Frames::new(format);
    let mut events = Vec::new();
    for piece in pieces {
        let mut each = |event: Result<Event<'_>, UnknownFrame>| match event {
            Ok(Event::Object(event)) => {
                events.push(event.revision);
                Ok(FrameFate::Passes)
            }
            _ => Err(()),
        };
        let mut left = piece.clone();
        loop {
            match frames.next(&mut left, false, &mut each) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(()) => return (events, None),
            }
        }
    }
    (events, Some(frames.kept() == 0))
}
