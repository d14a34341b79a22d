//! Follows what the client of one watch has seen, and says from where another server can go on. Pure.
//!
//! The relay passes the response on through it, and reads it when the watch ends. A stream that could not be parsed to the
//! last byte, or whose revisions do not only grow, has no position.
//!
//! Where a watch goes on at another server ([`ResumePoint`]), events of the last revision come again: they are left out,
//! and only if they are those that the client has seen does anything pass. So nothing comes twice, is missed, or goes back.

use std::cmp::Ordering;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use bytes::Bytes;

use super::frames::{
    Event, EventKind, FrameFate, FrameFormat, Frames, ObjectEvent, ObjectType, TABLE, UnknownFrame,
};

/// Up to which revision a client has seen everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WatchPosition {
    /// Every change before this revision has been seen.
    pub revision: i64,
    /// Changes of this revision that have been seen: one etcd transaction can change several keys, for example when a lease
    /// expires. 0: all of them, because a bookmark said so, or because the client started the watch from this revision.
    pub seen: u32,
    /// Hash of the names of these objects, in their order.
    pub names: u64,
}

/// Where a watch goes on at another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResumePoint {
    /// The `resourceVersion` to ask for.
    pub revision: i64,
    position: WatchPosition,
}

/// The server does not go on where the stream has stopped. Nothing of its answer was passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server does not go on where the watch has stopped")]
pub struct NotContinued;

/// Follows one watch.
#[derive(Debug, Clone, Hash)]
pub struct Follower {
    pub frames: Frames,
    /// [`Self::give_up`] ended the parsing, because too much was kept.
    pub over_budget: bool,
    /// As far as frames are read.
    pub has_error_passed: bool,
    seen: Seen,
    /// It goes on at another server, of which nothing was passed on yet: what came again so far, and what is to.
    seam: Option<Box<(WatchPosition, WatchPosition)>>,
}

/// What has passed.
#[derive(Debug, Clone, Hash)]
struct Seen {
    position: Option<WatchPosition>,
    /// Of the delivered objects. Boxed, because most watches are silent.
    object_type: Option<Box<ObjectType>>,
}

impl Follower {
    /// For a watch that starts after revision `start`. `None`: it begins with the existing objects, which come in no order,
    /// up to the first bookmark.
    pub fn new(format: FrameFormat, start: Option<i64>) -> Self {
        Self {
            frames: Frames::new(format),
            over_budget: false,
            has_error_passed: false,
            seen: Seen {
                position: start.map(WatchPosition::all_of),
                object_type: None,
            },
            seam: None,
        }
    }

    /// Finds only where frames end.
    pub fn of_boundaries(format: FrameFormat) -> Self {
        let mut follower = Self::new(format, None);
        follower.frames.stop_reading();
        follower
    }

    /// Takes bytes of the response from `data`, and returns the next ones to pass on; `None`: all were taken.
    pub fn next(&mut self, data: &mut Bytes) -> Result<Option<Bytes>, NotContinued> {
        let (seen, seam, has_error_passed) =
            (&mut self.seen, &mut self.seam, &mut self.has_error_passed);
        let hold = seam.is_some();
        if hold && !self.frames.is_read() {
            return Err(NotContinued);
        }
        self.frames.next(data, hold, |event| {
            if let Some(of_seam) = seam {
                let (again, wanted) = &mut **of_seam;
                let fate = at_seam(again, *wanted, &event)?;
                if fate.is_none() || again == wanted && wanted.seen > 0 {
                    *seam = None;
                }
                if let Some(fate) = fate {
                    return Ok(fate);
                }
            }
            *has_error_passed |= matches!(event, Ok(Event::Error(_)));
            Ok(seen.follow(event))
        })
    }

    /// Too much is kept for clients that do not read: the rest of the stream is not parsed.
    pub fn give_up(&mut self) {
        self.over_budget = self.frames.is_read();
        self.frames.stop_reading();
    }

    pub fn position(&self) -> Option<WatchPosition> {
        self.seen.position.filter(|_| self.frames.is_read())
    }

    /// Where it was handed over, if its client has got nothing since: that knows only where it was before.
    pub fn ahead_of_client(&self) -> Option<i64> {
        let (_, wanted) = **self.seam.as_ref()?;
        Some(wanted.revision)
    }

    /// Where another server can go on. `None`: that is not known, or a frame was passed on in part.
    pub fn resume_point(&self) -> Option<ResumePoint> {
        let position = self.position().filter(|_| self.frames.at_boundary())?;
        let revision = match position.seen {
            0 => position.revision,
            // Other changes of the revision may be missing.
            _ => position.revision - 1,
        };
        (revision > 0).then_some(ResumePoint { revision, position })
    }

    /// Where another server can go on if the client has seen everything up to `proved`.
    pub fn resume_point_at(&self, proved: i64) -> Option<ResumePoint> {
        let known = self.resume_point()?;
        (proved >= known.position.revision).then(|| ResumePoint {
            revision: proved,
            position: WatchPosition::all_of(proved),
        })
    }

    /// Another server's answer begins. Returns what is followed on if that server does not go on, and its own still does.
    pub fn resumes(&mut self, at: ResumePoint) -> Self {
        let before = self.clone();
        self.frames.begin_again();
        self.seen.position = Some(at.position);
        // None of its changes has come again yet.
        let again = WatchPosition::all_of(at.position.revision);
        self.seam = Some(Box::new((again, at.position)));
        before
    }

    /// The type of the delivered objects.
    pub fn object_type(&self) -> Option<&ObjectType> {
        let object_type = self.seen.object_type.as_deref();
        object_type.filter(|_| self.frames.is_read())
    }
}

impl Seen {
    /// Follows a frame that passes.
    fn follow(&mut self, event: Result<Event<'_>, UnknownFrame>) -> FrameFate {
        let Ok(Event::Object(event)) = event else {
            return FrameFate::EndsReading;
        };
        let Ok(after) = event.position_after(self.position) else {
            return FrameFate::EndsReading;
        };
        self.position = after;
        let is_known = self.object_type.as_ref().is_some_and(|known| {
            known.kind == event.object_kind && known.api_version == event.api_version
        });
        if !is_known {
            self.object_type = Some(Box::new(ObjectType {
                api_version: event.api_version.into_owned(),
                kind: event.object_kind.into_owned(),
            }));
        }
        FrameFate::Passes
    }
}

/// What becomes of a frame before anything has passed of another server's answer. `again`: what has come again of what the
/// client has seen (`seen`). `None`: it is the first that passes.
fn at_seam(
    again: &mut WatchPosition,
    seen: WatchPosition,
    event: &Result<Event<'_>, UnknownFrame>,
) -> Result<Option<FrameFate>, NotContinued> {
    // An ERROR: it refuses.
    let Ok(Event::Object(event)) = event else {
        return Err(NotContinued);
    };
    let is_whole = *again == seen;
    match (event.kind, event.revision.cmp(&seen.revision)) {
        (EventKind::Bookmark, Ordering::Less) => Ok(Some(FrameFate::LeftOut)),
        (EventKind::Bookmark, Ordering::Equal) if is_whole => Ok(None),
        (_, Ordering::Greater) if is_whole => Ok(None),
        (EventKind::Change, Ordering::Equal) if again.seen < seen.seen => {
            *again = again.and(&event.name);
            match again.seen == seen.seen && *again != seen {
                true => Err(NotContinued),
                false => Ok(Some(FrameFate::LeftOut)),
            }
        }
        _ => Err(NotContinued),
    }
}

impl ObjectEvent<'_> {
    /// The client's position after this event.
    fn position_after(
        &self,
        position: Option<WatchPosition>,
    ) -> Result<Option<WatchPosition>, UnknownFrame> {
        let revision = self.revision;
        match (self.kind, position) {
            (EventKind::Change, _) if self.name.is_empty() && self.object_kind != TABLE => {
                Err(UnknownFrame)
            }
            (EventKind::Bookmark, Some(position)) if position.revision > revision => {
                Err(UnknownFrame)
            }
            (EventKind::Bookmark, _) => Ok(Some(WatchPosition::all_of(revision))),
            (EventKind::Change, None) => Ok(None),
            (EventKind::Change, Some(position)) => position.after(revision, &self.name).map(Some),
        }
    }
}

impl WatchPosition {
    /// All changes of `revision` have been seen.
    pub fn all_of(revision: i64) -> Self {
        Self {
            revision,
            seen: 0,
            names: 0,
        }
    }

    /// After a change of `revision` to the object of this name.
    fn after(self, revision: i64, name: &str) -> Result<Self, UnknownFrame> {
        match revision.cmp(&self.revision) {
            Ordering::Greater => Ok(Self::all_of(revision).and(name)),
            // With 0 a bookmark said that this revision has no more changes.
            Ordering::Equal if self.seen > 0 => Ok(self.and(name)),
            Ordering::Equal | Ordering::Less => Err(UnknownFrame),
        }
    }

    /// After another change of the same revision.
    fn and(self, name: &str) -> Self {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        Self {
            seen: self.seen.saturating_add(1),
            names: hasher.hash_one((self.names, name)),
            ..self
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

    /// What passes of a piece.
    fn pass(follower: &mut Follower, piece: &Bytes) -> Bytes {
        try_pass(follower, piece).unwrap()
    }

    fn try_pass(follower: &mut Follower, piece: &Bytes) -> Result<Bytes, NotContinued> {
        let (mut piece, mut passed) = (piece.clone(), Vec::new());
        while let Some(passes) = follower.next(&mut piece)? {
            passed.extend_from_slice(&passes);
        }
        Ok(passed.into())
    }

    fn after(start: Option<i64>, pieces: &[Bytes]) -> Follower {
        let mut follower = Follower::new(FrameFormat::Json, start);
        for piece in pieces {
            pass(&mut follower, piece);
        }
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
    fn half_a_frame_does_not_pass() {
        let whole = added(9, "a");
        let mut follower = after(Some(7), &[whole.slice(..20)]);
        assert!(follower.frames.at_boundary() && follower.position().is_some());
        let mut ends = Follower::of_boundaries(FrameFormat::Json);
        assert_eq!(pass(&mut ends, &whole.slice(..20)), whole.slice(..20));
        assert!(!ends.frames.at_boundary() && ends.position().is_none());
        assert_eq!(pass(&mut ends, &whole.slice(20..)), whole.slice(20..));
        assert_eq!(pass(&mut follower, &whole.slice(20..)), whole);
        assert!(ends.frames.at_boundary() && follower.frames.at_boundary());
        let position = follower.position().unwrap();
        assert_eq!((position.revision, position.seen), (9, 1));
    }

    /// A watch whose server has stopped after these pieces, and what another server is asked for.
    fn stopped(pieces: &[Bytes]) -> (Follower, i64) {
        let mut follower = after(Some(7), pieces);
        let point = follower.resume_point().unwrap();
        follower.resumes(point);
        (follower, point.revision)
    }

    #[test]
    fn what_comes_again_is_left_out_and_nothing_else() {
        let seen = [added(9, "a"), added(9, "b")];
        let (_, asked) = stopped(&seen);
        assert_eq!(asked, 8, "other changes of the revision may be missing");
        for (again, passes) in [
            (
                vec![added(9, "a"), added(9, "b"), added(9, "c"), added(10, "a")],
                2,
            ),
            (vec![added(9, "a"), added(9, "b"), bookmark(12)], 1),
            (vec![bookmark(8), added(9, "a"), added(9, "b")], 0),
        ] {
            let whole = again.concat();
            for cut in 0..whole.len() {
                let (mut follower, _) =
                    stopped(&[&seen[..], &[added(10, "half").slice(..9)]].concat());
                let mut passed =
                    pass(&mut follower, &Bytes::copy_from_slice(&whole[..cut])).to_vec();
                passed.extend(pass(&mut follower, &Bytes::copy_from_slice(&whole[cut..])));
                let expected = again[again.len() - passes..].concat();
                assert_eq!(passed, expected);
            }
        }
        let (mut follower, _) = stopped(&seen);
        pass(&mut follower, &again_and(&seen, added(9, "c")));
        let position = follower.position().unwrap();
        assert_eq!((position.revision, position.seen), (9, 3));
    }

    fn again_and(seen: &[Bytes], more: Bytes) -> Bytes {
        [&seen.concat()[..], &more].concat().into()
    }

    #[test]
    fn after_a_bookmark_nothing_comes_again() {
        let (mut follower, asked) = stopped(&[added(9, "a"), bookmark(12)]);
        assert_eq!(asked, 12);
        assert_eq!(pass(&mut follower, &bookmark(11)), "");
        assert_eq!(pass(&mut follower, &added(13, "a")), added(13, "a"));
    }

    #[test]
    fn a_server_that_does_not_go_on_there_passes_nothing() {
        let seen = [added(9, "a"), added(9, "b")];
        let error = Bytes::from_static(
            br#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"code":410}}
"#,
        );
        for other in [
            vec![added(10, "c")],
            vec![added(9, "b"), added(9, "a")],
            vec![added(9, "a"), added(10, "c")],
            vec![added(9, "a"), bookmark(9)],
            vec![added(8, "a")],
            vec![bookmark(9)],
            vec![error.clone()],
            vec![Bytes::from_static(b"{}\n")],
        ] {
            let (mut follower, _) = stopped(&seen);
            let passed = try_pass(&mut follower, &other.concat().into());
            assert_eq!(passed, Err(NotContinued), "{other:?}");
            // Another one may.
            let point = follower.resume_point().unwrap();
            assert_eq!(point.revision, 8);
            follower.resumes(point);
            let more = added(10, "c");
            assert_eq!(pass(&mut follower, &again_and(&seen, more.clone())), more);
        }
        for other in [added(12, "a"), added(11, "a"), error] {
            let (mut follower, _) = stopped(&[bookmark(12)]);
            assert_eq!(try_pass(&mut follower, &other), Err(NotContinued));
        }
    }

    #[test]
    fn a_watch_that_no_other_server_goes_on_with_stays_where_it_was() {
        let next = added(10, "b");
        let seen = [added(9, "a"), next.slice(..20)];
        for refuses in [added(8, "a"), added(9, "a").slice(..20), Bytes::new()] {
            let mut follower = after(Some(7), &seen);
            let point = follower.resume_point().unwrap();
            let before = follower.resumes(point);
            let _ = try_pass(&mut follower, &refuses);
            follower = before;
            assert_eq!(pass(&mut follower, &next.slice(20..)), next);
        }
    }

    #[test]
    fn what_is_not_read_does_not_go_on() {
        let (mut follower, _) = stopped(&[bookmark(12)]);
        let event = added(13, "a");
        assert_eq!(pass(&mut follower, &event.slice(..9)), "");
        follower.give_up();
        assert_eq!(
            try_pass(&mut follower, &event.slice(9..)),
            Err(NotContinued)
        );
        assert_eq!(follower.resume_point(), None);
    }

    #[test]
    fn a_proved_revision_is_where_another_server_goes_on() {
        let mut follower = after(Some(7), &[added(9, "a")]);
        assert_eq!(follower.resume_point_at(8), None);
        let proved = follower.resume_point_at(20).unwrap();
        assert_eq!(proved.revision, 20);
        follower.resumes(proved);
        assert_eq!(try_pass(&mut follower, &added(20, "b")), Err(NotContinued));
        follower.resumes(proved);
        assert_eq!(pass(&mut follower, &added(21, "b")), added(21, "b"));
    }

    #[test]
    fn a_stream_without_a_position_goes_on_nowhere() {
        assert_eq!(after(None, &[added(9, "a")]).resume_point(), None);
        assert_eq!(after(Some(1), &[added(1, "a")]).resume_point(), None);
        let large = added(9, &"a".repeat(70_000));
        assert_eq!(
            after(Some(7), &[large.slice(..69_000)]).resume_point(),
            None
        );
        assert!(after(Some(7), &[large]).resume_point().is_some());
    }
}
