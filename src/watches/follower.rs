//! What the client of one watch has seen, as far as that is known. Pure.
//!
//! Written by the stream while it passes the answer on, read when it ends. Nothing is said of a stream that was not
//! understood to the last byte, that stands in the middle of a frame, or whose revisions do not only grow.

use bytes::Bytes;

use super::frames::{Event, Format, Frames, Kind, Unknown};

/// Up to where a client has seen everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Every change before this revision has been seen.
    pub revision: i64,
    /// How many changes of this very revision have been seen: one transaction of etcd can be several, the end of a lease
    /// is. 0: all of them, because a bookmark said so, or the client when it began here.
    pub seen: u32,
}

/// An object as it was delivered: where it is kept must have the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Witness {
    /// Namespace and name, or the name alone, as in etcd's keys.
    pub key: String,
    /// Its resource version.
    pub revision: i64,
}

impl Witness {
    /// Of the object that has this namespace, or none, and name.
    pub(super) fn set(&mut self, namespace: &str, name: &str, revision: i64) {
        self.revision = revision;
        self.key.clear();
        if !namespace.is_empty() {
            self.key.push_str(namespace);
            self.key.push('/');
        }
        self.key.push_str(name);
    }
}

/// The type that a stream's objects have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeMeta {
    /// `apiVersion`.
    pub api_version: String,
    /// `kind`.
    pub kind: String,
}

/// Follows one watch.
#[derive(Debug)]
pub struct Follower {
    format: Format,
    frames: Result<Frames, Unknown>,
    seen: Seen,
}

#[derive(Debug)]
struct Seen {
    position: Option<Position>,
    witness: Option<Witness>,
    type_meta: Option<TypeMeta>,
}

impl Follower {
    /// At the beginning of a stream that its client asked for from `start` on. `None`: whatever there is, which comes in
    /// no order, until the first bookmark.
    pub fn new(format: Format, start: Option<i64>) -> Self {
        Self {
            format,
            frames: Ok(Frames::new(format)),
            seen: Seen {
                position: start.map(|revision| Position { revision, seen: 0 }),
                witness: None,
                type_meta: None,
            },
        }
    }

    /// This was passed on.
    pub fn passed(&mut self, data: &Bytes) {
        if let Ok(frames) = &mut self.frames {
            let seen = &mut self.seen;
            if frames.take(data, |event| seen.event(&event)).is_err() {
                // What is half read is not needed any more either.
                self.frames = Err(Unknown);
            }
        }
    }

    /// How its events are framed.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether it is still understood.
    pub fn is_understood(&self) -> bool {
        self.frames.is_ok()
    }

    /// Whether what was passed on ends with a frame.
    pub fn at_border(&self) -> bool {
        self.frames.as_ref().is_ok_and(Frames::at_border)
    }

    /// What its client has seen, if that is known.
    pub fn position(&self) -> Option<Position> {
        self.seen.position.filter(|_| self.is_understood())
    }

    /// The object that was delivered last.
    pub fn witness(&self) -> Option<&Witness> {
        self.seen.witness.as_ref().filter(|_| self.is_understood())
    }

    /// The type of what was delivered.
    pub fn type_meta(&self) -> Option<&TypeMeta> {
        self.seen
            .type_meta
            .as_ref()
            .filter(|_| self.is_understood())
    }
}

impl Seen {
    fn event(&mut self, event: &Event<'_>) -> Result<(), Unknown> {
        let revision = event.revision;
        if event.object_kind == "Table" || (event.kind == Kind::Change && event.name.is_empty()) {
            // Not the object itself: its bookmarks would have to have a form of their own.
            return Err(Unknown);
        }
        let known = self.type_meta.as_ref().is_some_and(|known| {
            known.kind == event.object_kind && known.api_version == event.api_version
        });
        if !known {
            self.type_meta = Some(TypeMeta {
                api_version: event.api_version.clone().into_owned(),
                kind: event.object_kind.clone().into_owned(),
            });
        }
        match event.kind {
            Kind::Bookmark => match self.position {
                Some(position) if position.revision > revision => return Err(Unknown),
                _ => self.position = Some(Position { revision, seen: 0 }),
            },
            Kind::Change => {
                self.position = self
                    .position
                    .map(|position| position.next(revision))
                    .transpose()?;
                let witness = self.witness.get_or_insert_default();
                witness.set(&event.namespace, &event.name, revision);
            }
        }
        Ok(())
    }
}

impl Position {
    /// After a change of `revision`.
    fn next(self, revision: i64) -> Result<Self, Unknown> {
        match revision.cmp(&self.revision) {
            std::cmp::Ordering::Greater => Ok(Self { revision, seen: 1 }),
            // After it was said that there are no more of it.
            std::cmp::Ordering::Equal if self.seen == 0 => Err(Unknown),
            std::cmp::Ordering::Equal => Ok(Self {
                revision,
                seen: self.seen.saturating_add(1),
            }),
            std::cmp::Ordering::Less => Err(Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watches::bookmark;

    fn added(revision: i64, name: &str) -> Bytes {
        format!(
            r#"{{"type":"ADDED","object":{{"kind":"Pod","apiVersion":"v1","metadata":{{"namespace":"n","name":"{name}","resourceVersion":"{revision}"}}}}}}
"#
        )
        .into()
    }

    fn bookmark(revision: i64) -> Bytes {
        bookmark::frame(Format::Json, "v1", "Pod", revision)
    }

    fn after(start: Option<i64>, pieces: &[Bytes]) -> Follower {
        let mut follower = Follower::new(Format::Json, start);
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
        let witness = after(None, &[added(9, "a"), added(4, "b")])
            .witness()
            .cloned();
        assert_eq!(
            witness,
            Some(Witness {
                key: "n/b".to_owned(),
                revision: 4
            })
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
            assert!(!follower.is_understood() && follower.position().is_none());
            assert!(follower.witness().is_none() && follower.type_meta().is_none());
        }
        assert_eq!(position(Some(7), &[added(7, "a")]), None);
    }

    #[test]
    fn half_a_frame_is_no_border() {
        let whole = added(9, "a");
        let mut follower = after(Some(7), &[whole.slice(..20)]);
        assert!(!follower.at_border() && follower.position().is_some());
        follower.passed(&whole.slice(20..));
        assert!(follower.at_border());
        assert_eq!(
            follower.position(),
            Some(Position {
                revision: 9,
                seen: 1
            })
        );
    }
}
