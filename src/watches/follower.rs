//! Follows what the client of one watch has seen. Pure.
//!
//! The relay feeds it while it forwards the response, and reads it when the watch ends. A stream that could not be parsed to
//! the last byte, or whose revisions do not only grow, has no position.

use std::cmp::Ordering;

use bytes::Bytes;

use super::frames::{EventKind, FrameFormat, Frames, ObjectEvent, ObjectType, TABLE, UnknownFrame};

/// Up to which revision a client has seen everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchPosition {
    /// Every change before this revision has been seen.
    pub revision: i64,
    /// Changes of this revision that have been seen: one etcd transaction can change several keys, for example when a lease
    /// expires. 0: all of them, because a bookmark said so, or because the client started the watch from this revision.
    pub seen: u32,
}

/// Follows one watch.
#[derive(Debug)]
pub struct Follower {
    pub frames: Frames,
    /// It was given up because too much was kept.
    over_budget: bool,
    seen: Seen,
}

/// What was delivered. The type is boxed, because most watches are silent.
#[derive(Debug)]
struct Seen {
    position: Option<WatchPosition>,
    object_type: Option<Box<ObjectType>>,
}

impl Follower {
    /// For a watch that starts after revision `start`. `None`: it begins with the existing objects, which come in no order,
    /// up to the first bookmark.
    pub fn new(format: FrameFormat, start: Option<i64>) -> Self {
        Self {
            frames: Frames::new(format),
            over_budget: false,
            seen: Seen {
                position: start.map(|revision| WatchPosition { revision, seen: 0 }),
                object_type: None,
            },
        }
    }

    /// Finds only where frames end.
    pub fn of_boundaries(format: FrameFormat) -> Self {
        let mut follower = Self::new(format, None);
        follower.frames.stop_reading();
        follower
    }

    /// These bytes were forwarded to the client.
    pub fn passed(&mut self, data: &Bytes) {
        let seen = &mut self.seen;
        // An event that cannot be read ends the reading.
        let _ = self.frames.take(data, |event| seen.event(&event));
    }

    /// Too much is kept for clients that do not read: the rest of the stream is not parsed.
    pub fn give_up(&mut self) {
        self.over_budget = self.frames.is_read();
        self.frames.stop_reading();
    }

    /// Whether [`Self::give_up`] ended the parsing.
    pub fn is_over_budget(&self) -> bool {
        self.over_budget
    }

    pub fn position(&self) -> Option<WatchPosition> {
        self.seen.position.filter(|_| self.frames.is_read())
    }

    /// The type of the delivered objects.
    pub fn object_type(&self) -> Option<&ObjectType> {
        let object_type = self.seen.object_type.as_deref();
        object_type.filter(|_| self.frames.is_read())
    }
}

impl Seen {
    fn event(&mut self, event: &ObjectEvent<'_>) -> Result<(), UnknownFrame> {
        let revision = event.revision;
        if event.kind == EventKind::Change && event.name.is_empty() && event.object_kind != TABLE {
            return Err(UnknownFrame);
        }
        let known = self.object_type.as_ref().is_some_and(|known| {
            known.kind == event.object_kind && known.api_version == event.api_version
        });
        if !known {
            self.object_type = Some(Box::new(ObjectType {
                api_version: event.api_version.clone().into_owned(),
                kind: event.object_kind.clone().into_owned(),
            }));
        }
        self.position = match (event.kind, self.position) {
            (EventKind::Bookmark, Some(position)) if position.revision > revision => {
                return Err(UnknownFrame);
            }
            (EventKind::Bookmark, _) => Some(WatchPosition { revision, seen: 0 }),
            (EventKind::Change, None) => None,
            (EventKind::Change, Some(position)) => Some(position.next(revision)?),
        };
        Ok(())
    }
}

impl WatchPosition {
    /// After a change of `revision`.
    fn next(self, revision: i64) -> Result<Self, UnknownFrame> {
        match revision.cmp(&self.revision) {
            Ordering::Greater => Ok(Self { revision, seen: 1 }),
            // With 0 a bookmark said that this revision has no more changes.
            Ordering::Equal if self.seen > 0 => Ok(Self {
                revision,
                seen: self.seen.saturating_add(1),
            }),
            Ordering::Equal | Ordering::Less => Err(UnknownFrame),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(revision: i64, name: &str) -> Bytes {
        format!(
            r#"{{"type":"ADDED","object":{{"kind":"Pod","apiVersion":"v1","metadata":{{"namespace":"n","name":"{name}","resourceVersion":"{revision}"}}}}}}
"#
        )
        .into()
    }

    fn bookmark(revision: i64) -> Bytes {
        let pod = ObjectType {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
        };
        FrameFormat::Json.bookmark(&pod, revision).unwrap()
    }

    fn after(start: Option<i64>, pieces: &[Bytes]) -> Follower {
        let mut follower = Follower::new(FrameFormat::Json, start);
        pieces.iter().for_each(|piece| follower.passed(piece));
        follower
    }

    fn position(start: Option<i64>, pieces: &[Bytes]) -> Option<(i64, u32)> {
        let position = after(start, pieces).position()?;
        Some((position.revision, position.seen))
    }

    #[test]
    fn a_client_has_seen_what_it_began_after_and_what_came() {
        assert_eq!(position(Some(7), &[]), Some((7, 0)));
        assert_eq!(position(Some(7), &[added(9, "a")]), Some((9, 1)));
        assert_eq!(
            position(Some(7), &[added(9, "a"), added(9, "b")]),
            Some((9, 2))
        );
        assert_eq!(
            position(Some(7), &[added(9, "a"), bookmark(9)]),
            Some((9, 0))
        );
        assert_eq!(
            position(Some(7), &[added(9, "a"), bookmark(12)]),
            Some((12, 0))
        );
    }

    #[test]
    fn initial_events_tell_no_position_before_the_first_bookmark() {
        assert_eq!(position(None, &[added(9, "a"), added(4, "b")]), None);
        assert_eq!(
            position(None, &[added(9, "a"), added(4, "b"), bookmark(9)]),
            Some((9, 0))
        );
    }

    #[test]
    fn nothing_is_known_of_a_stream_whose_revisions_go_back() {
        for pieces in [
            [added(9, "a"), added(8, "b")],
            [bookmark(9), added(9, "b")],
            [added(9, "a"), bookmark(8)],
        ] {
            let follower = after(Some(7), &pieces);
            assert!(!follower.frames.is_read() && follower.position().is_none());
            assert!(follower.object_type().is_none());
        }
        assert_eq!(position(Some(7), &[added(7, "a")]), None);
    }

    #[test]
    fn half_a_frame_is_no_boundary() {
        let whole = added(9, "a");
        let mut follower = after(Some(7), &[whole.slice(..20)]);
        assert!(!follower.frames.at_boundary() && follower.position().is_some());
        let mut ends = Follower::of_boundaries(FrameFormat::Json);
        ends.passed(&whole.slice(..20));
        assert!(!ends.frames.at_boundary() && ends.position().is_none());
        for follower in [&mut follower, &mut ends] {
            follower.passed(&whole.slice(20..));
            assert!(follower.frames.at_boundary());
        }
        assert_eq!(
            follower.position(),
            Some(WatchPosition {
                revision: 9,
                seen: 1
            })
        );
    }
}
