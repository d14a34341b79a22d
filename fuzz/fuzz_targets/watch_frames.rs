//! The answer to a watch: however it is split, it reads as the whole.
#![no_main]

use bytes::Bytes;
use kube_interop_proxy::watches::follower::Follower;
use kube_interop_proxy::watches::frames::{Format, Frames};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (bool, Vec<u8>, Vec<u8>)| {
    let (protobuf, stream, lengths) = data;
    let format = if protobuf { Format::Protobuf } else { Format::Json };
    let stream = Bytes::from(stream);
    let mut pieces = Vec::new();
    let mut rest = stream.clone();
    for length in lengths {
        pieces.push(rest.split_to(usize::from(length).min(rest.len())));
    }
    pieces.push(rest);
    assert_eq!(read(format, &pieces), read(format, &[stream]));
    let mut follower = Follower::new(format, Some(1));
    pieces.iter().for_each(|piece| follower.passed(piece));
    let position = follower.position();
    assert!(position.is_none_or(|position| position.revision >= 1));
});

/// The revisions of the events, and whether it was understood and ends with a frame.
fn read(format: Format, pieces: &[Bytes]) -> (Vec<i64>, Option<bool>) {
    let mut frames = Frames::new(format);
    let mut events = Vec::new();
    for piece in pieces {
        let taken = frames.take(piece, |event| {
            events.push(event.revision);
            Ok(())
        });
        if taken.is_err() {
            return (events, None);
        }
    }
    let border = frames.at_border();
    (events, Some(border))
}
