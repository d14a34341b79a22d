//! All that is there, and what can happen next.
//!
//! Not modelled: that the proxy learns of a restore later than the apiservers, and what an apiserver that lives through a
//! restore sends on the watches that it has already.

use bytes::Bytes;

use super::client::{Client, event, thing};
use super::cluster::{BEGIN, Change, Etcd, Kind, LOCAL, Server};
use super::search::{Model, Next};
use crate::watches::change_log::ChangeLog;
use crate::watches::follower::{Follower, NotContinued, ResumePoint};
use crate::watches::frames::FrameFormat;

/// An error in the program, as a sentence that would not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutation {
    /// The server is asked for one revision later.
    PositionTooHigh,
    /// All of the last event's revision is taken for seen.
    WholeRevision,
    /// That the first server keeps the resource in this etcd counts for the next one.
    ProofOfAnother,
    /// What comes again passes.
    Twice,
    /// A peer's proxy sends the watch on.
    SecondHop,
    /// A history from before a restore counts.
    RestoreForgotten,
    /// Half a frame passes.
    HalfFrame,
    /// An older server is asked.
    OlderServer,
    /// The last bookmark is etcd's revision.
    NewestBookmark,
    /// What a server was asked for in vain is still awaited when the watch stays.
    AskedInVain,
    /// etcd is not looked at again after the server was found to keep the resource there.
    OneLook,
    /// The last bookmark goes by what was read of an etcd that was restored since.
    BookmarkOfBefore,
}

/// What may happen how often.
#[derive(Debug, Clone, Copy, Default, Hash)]
pub(super) struct Bounds {
    pub(super) writes: u8,
    pub(super) stops: u8,
    pub(super) restarts: u8,
    pub(super) restores: u8,
    pub(super) compactions: u8,
    pub(super) halves: u8,
    pub(super) bookmarks: u8,
}

/// One cluster, and a watch that began at one of its servers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    pub(super) kinds: [Kind; 3],
    pub(super) first: usize,
    /// It began at `0`: its client has no revision before the first bookmark.
    pub(super) from_anything: bool,
    /// It began after etcd was restored; the last server has not been restarted since.
    pub(super) after_restore: bool,
    pub(super) bounds: Bounds,
    pub(super) mutation: Option<Mutation>,
    /// A clean end within a revision counts as a violation.
    pub(super) strict: bool,
}

#[derive(Debug, Clone, Copy)]
#[expect(dead_code, reason = "which server it is shows in traces")]
pub(super) enum Step {
    Writes(Change),
    Compacts,
    /// From a backup, which lacks the last transaction.
    Restores,
    Dies(usize),
    /// The local apiserver's `/readyz` says so.
    ShutsDown,
    /// With an empty history.
    Restarts(usize),
    /// What it is becomes known.
    Publishes(usize),
    /// The server sends the next event, or the rest of it.
    Sends,
    SendsHalf,
    SendsBookmark(i64),
    /// A server is chosen that is to go on after this revision, and asked whether it keeps the resource in this etcd.
    Chooses(usize, i64),
    /// It is asked to go on.
    Asks,
    /// etcd tells what has changed.
    Tells,
    Ends,
}

/// An answer that is open.
#[derive(Debug, Clone, Copy, Hash)]
pub(super) struct Connection {
    pub(super) server: usize,
    /// The last event that was sent: its revision, and its number there. In the beginning all of the revision that was asked for.
    sent: (i64, usize),
    /// Half of the next one was sent as well.
    half: bool,
    is_new: bool,
    /// etcd's restores when it began.
    restores: usize,
}

#[derive(Clone, Copy, Hash)]
pub(super) enum Place {
    Served(Connection),
    /// Its server has stopped.
    Held,
    Ended,
}

/// As the relay's: which server serves the watch.
#[derive(Clone, Hash)]
pub(super) struct ServedBy {
    pub(super) server: usize,
    pub(super) restores: usize,
    /// It is proved that it keeps the resource in this etcd.
    pub(super) stored_here: bool,
    pub(super) log: Option<ChangeLog>,
}

#[derive(Clone, Hash)]
pub(super) struct World {
    pub(super) etcd: Etcd,
    pub(super) servers: [Server; 3],
    left: Bounds,
    pub(super) place: Place,
    pub(super) follower: Follower,
    pub(super) served_by: ServedBy,
    /// Servers that do not go on with it: those that are not asked again, and those that may be once more is known of them.
    pub(super) refused: [bool; 3],
    pub(super) paused: [bool; 3],
    /// The server that was chosen, and from where it is to go on.
    pub(super) chosen: Option<(usize, ResumePoint)>,
    /// The client's watch began after this revision, and after so many restores.
    start: (i64, usize),
    pub(super) client: Client,
}

impl World {
    /// The watch begins.
    pub(super) fn new(setup: &Setup) -> Self {
        let mut etcd = Etcd::new();
        let mut servers = [(); 3].map(|()| Server::new());
        if setup.after_restore {
            etcd.writes(Change::Both);
            etcd.writes(Change::One);
            etcd.is_restored();
            for server in &mut servers[..2] {
                server.restarts(&etcd);
                server.publishes(&etcd);
            }
        }
        Self::beginning(setup, etcd, servers)
    }

    fn beginning(setup: &Setup, etcd: Etcd, servers: [Server; 3]) -> Self {
        let start = etcd.revision();
        let mut world = Self {
            left: setup.bounds,
            place: Place::Ended,
            follower: Follower::new(FrameFormat::Json, (!setup.from_anything).then_some(start)),
            served_by: ServedBy {
                server: setup.first,
                restores: etcd.restores(),
                stored_here: false,
                log: None,
            },
            refused: [false; 3],
            paused: [false; 3],
            chosen: None,
            start: (start, etcd.restores()),
            client: Client::new(start),
            etcd,
            servers,
        };
        world.serves(setup.first, start, false);
        world.served_by.stored_here = world.is_stored_by(setup, setup.first);
        world
    }

    /// A server begins to answer a watch after `revision`.
    /// `is_new`: in place of another one.
    pub(super) fn serves(&mut self, server: usize, revision: i64, is_new: bool) {
        self.place = Place::Served(Connection {
            server,
            sent: (revision, usize::MAX),
            half: false,
            is_new,
            restores: self.etcd.restores(),
        });
    }

    /// All that the client is to get, and the revision up to which that is known.
    pub(super) fn wanted(&self, setup: &Setup) -> (Vec<(i64, &'static str)>, i64) {
        let (start, history) = self.start;
        match setup.kinds[setup.first] {
            Kind::Elsewhere => (Etcd::other().changes(0, start), i64::MAX),
            _ => (self.etcd.changes(history, start), self.etcd.end(history)),
        }
    }

    /// The etcd of a server, and the history in which its process began.
    fn source(&self, setup: &Setup, server: usize) -> (Etcd, usize) {
        match setup.kinds[server] {
            Kind::Elsewhere => (Etcd::other(), 0),
            _ => (self.etcd.clone(), self.servers[server].history),
        }
    }

    /// The next event of an answer: its revision, its number there, its name.
    fn next(&self, setup: &Setup, of: Connection) -> Option<(i64, usize, &'static str)> {
        let (etcd, history) = self.source(setup, of.server);
        let is_older = setup.kinds[of.server] == Kind::Older;
        let (mut revision, mut number) = (of.sent.0, of.sent.1.saturating_add(1));
        loop {
            let change = etcd.change(history, revision);
            let change = change.filter(|(history, _)| *history <= of.restores);
            let names = change.map_or(&[][..], |(_, change)| change.names(is_older));
            if let Some(name) = names.get(number) {
                return Some((revision, number, *name));
            }
            if change.is_none() && revision > BEGIN {
                return None;
            }
            (revision, number) = (revision + 1, 0);
        }
    }

    /// Revisions at which the server of an answer may send a bookmark: what it has sent is all that there is up to it. Its cache
    /// may be behind what it was asked for.
    fn bookmarks(&self, setup: &Setup, of: Connection) -> Vec<i64> {
        let newest = match setup.kinds[of.server] {
            Kind::Elsewhere => Etcd::other().revision(),
            _ => self.etcd.end(of.restores),
        };
        let next = self.next(setup, of).map(|(revision, ..)| revision - 1);
        let mut bookmarks = vec![next.unwrap_or(newest)];
        bookmarks.retain(|revision| *revision >= of.sent.0);
        if of.is_new {
            bookmarks.push(of.sent.0 - 1);
        }
        bookmarks
    }

    /// The server of an answer sends its next event, `half`: only the first half of it.
    fn sends(&mut self, setup: &Setup, mut of: Connection, half: bool) -> Result<(), String> {
        let Some((revision, number, name)) = self.next(setup, of) else {
            return Ok(());
        };
        let mut frame = event(revision, name);
        let rest = frame.split_off(frame.len() / 2);
        let piece = match (half, of.half) {
            (true, _) => frame,
            (false, true) => rest,
            (false, false) => [frame, rest].concat().into(),
        };
        of.half = half;
        of.is_new = false;
        if !half {
            of.sent = (revision, number);
        }
        self.place = Place::Served(of);
        self.passes(setup, of, piece)
    }

    /// A piece of an answer passes, as in the relay.
    fn passes(&mut self, setup: &Setup, of: Connection, mut piece: Bytes) -> Result<(), String> {
        let (wanted, newest) = self.wanted(setup);
        if setup.mutation == Some(Mutation::HalfFrame) && of.half {
            return self.client.reads(&piece, &wanted, newest);
        }
        loop {
            match self.follower.next(&mut piece) {
                Ok(Some(passes)) => self.client.reads(&passes, &wanted, newest)?,
                Ok(None) => return Ok(()),
                Err(NotContinued) => break,
            }
        }
        let is_judged = matches!(setup.mutation, None | Some(Mutation::AskedInVain));
        if setup.kinds[of.server] == Kind::Plain && is_judged {
            return Err("a server is left that goes on rightly".to_owned());
        }
        self.stops();
        Ok(())
    }

    /// Its server does not serve the watch any more.
    fn stops(&mut self) {
        self.place = Place::Held;
        (self.refused, self.paused) = ([false; 3], [false; 3]);
    }

    /// What may happen besides the watch, and what comes of it.
    fn events(&self) -> Vec<(Step, Self)> {
        let mut events = Vec::new();
        let mut may = |is_possible: bool, step: Step, happens: &dyn Fn(&mut Self)| {
            let after = is_possible.then(|| {
                let mut after = self.clone();
                happens(&mut after);
                (step, after)
            });
            events.extend(after);
        };
        let (left, revision) = (self.left, self.etcd.revision());
        for change in [Change::One, Change::Both, Change::Foreign] {
            may(left.writes > 0, Step::Writes(change), &|after| {
                after.left.writes -= 1;
                after.etcd.writes(change);
            });
        }
        let may_compact = left.compactions > 0 && revision > self.etcd.compacted;
        may(may_compact, Step::Compacts, &|after| {
            after.left.compactions -= 1;
            after.etcd.compacted = revision;
        });
        let may_restore = left.restores > 0 && revision > BEGIN;
        may(may_restore, Step::Restores, &|after| {
            after.left.restores -= 1;
            after.etcd.is_restored();
        });
        for (index, server) in self.servers.iter().enumerate() {
            let may_stop = server.up && left.stops > 0 && !server.stopping;
            may(may_stop && index == LOCAL, Step::ShutsDown, &|after| {
                after.left.stops -= 1;
                after.servers[LOCAL].stopping = true;
                after.servers[LOCAL].known.ready = false;
            });
            let may_die = may_stop || server.up && server.stopping;
            may(may_die, Step::Dies(index), &|after| {
                after.left.stops -= u8::from(!server.stopping);
                after.servers[index].up = false;
                if matches!(after.place, Place::Served(of) if of.server == index) {
                    after.stops();
                }
            });
            let may_restart = !server.up && left.restarts > 0;
            may(may_restart, Step::Restarts(index), &|after| {
                after.left.restarts -= 1;
                after.servers[index].restarts(&self.etcd);
            });
            let mut published = server.clone();
            published.publishes(&self.etcd);
            may(published != *server, Step::Publishes(index), &|after| {
                after.servers[index] = published.clone();
                after.paused[index] = false;
            });
        }
        events
    }

    /// What may happen on the watch while a server serves it.
    fn answers(&self, setup: &Setup, of: Connection) -> Vec<Step> {
        let mut steps = Vec::new();
        if self.next(setup, of).is_some() {
            steps.push(Step::Sends);
            steps.extend((self.left.halves > 0 && !of.half).then_some(Step::SendsHalf));
        }
        if self.left.bookmarks > 0 && !of.half {
            let bookmarks = self.bookmarks(setup, of);
            steps.extend(bookmarks.into_iter().map(Step::SendsBookmark));
        }
        steps
    }

    fn after(&self, setup: &Setup, step: Step) -> Result<Self, String> {
        let mut after = self.clone();
        match (step, self.place) {
            (Step::Sends, Place::Served(of)) => after.sends(setup, of, false)?,
            (Step::SendsHalf, Place::Served(of)) => {
                after.left.halves -= 1;
                after.sends(setup, of, true)?;
            }
            (Step::SendsBookmark(revision), Place::Served(mut of)) => {
                after.left.bookmarks -= 1;
                of.sent = (of.sent.0.max(revision), usize::MAX);
                of.is_new = false;
                after.place = Place::Served(of);
                let frame = FrameFormat::Json.bookmark(&thing(), revision).unwrap();
                after.passes(setup, of, frame)?;
            }
            (Step::Chooses(server, revision), _) => after.chooses(setup, server, revision),
            (Step::Asks, _) => after.asks(setup),
            (Step::Tells, _) => after.tells(),
            _ => after.ends(setup)?,
        }
        Ok(after)
    }
}

impl Model for Setup {
    type State = World;
    type Step = Step;

    fn steps(&self, world: &World) -> Vec<Next<Self>> {
        let mut steps = world.hand_over(self);
        match world.place {
            Place::Ended => return Vec::new(),
            Place::Served(of) if world.chosen.is_none() => steps.extend(world.answers(self, of)),
            Place::Served(_) | Place::Held => {}
        }
        let steps = steps
            .into_iter()
            .map(|step| (step, world.after(self, step)));
        let events = world.events().into_iter();
        steps
            .chain(events.map(|(step, after)| (step, Ok(after))))
            .collect()
    }
}
