//! What the relay does when the server of a watch stops. Where the watch goes on is decided by the program's own code: what its
//! client has seen and what passes (`follower`), which servers can go on (`routing::hand_over`), what etcd proves
//! (`change_log`), who keeps the resource here (`sample`), and what a peer's proxy does with a watch that was sent to it
//! (`routing::decide`). What connects these stands here as in `relay::service::hand_over` and `relay::watch`.

use super::client::thing;
use super::cluster::{Change, Kind, LOCAL, THINGS, is_stored, snapshot};
use super::world::{Mutation, Place, ServedBy, Setup, Step, World};
use crate::config::settings::Settings;
use crate::routing::decide::{LocalServer, RoutingInput, ServerChoice, decide};
use crate::routing::hand_over::StoppedWatch;
use crate::watches::change_log::{ChangeLog, newest_safe};
use crate::watches::follower::ResumePoint;

/// What a server says to a watch.
#[derive(PartialEq, Eq)]
enum Answer {
    /// By the apiserver of this server.
    Goes(usize),
    Expired,
    Unavailable,
}

impl World {
    /// What comes next, as `HandOver::step` has it.
    pub(super) fn hand_over(&self, setup: &Setup) -> Vec<Step> {
        if self.chosen.is_some() {
            return vec![Step::Asks];
        }
        let held = matches!(self.place, Place::Held);
        let leaves = |of: usize| self.servers[of].stopping && self.follower.frames.at_boundary();
        if !held && !matches!(self.place, Place::Served(of) if leaves(of.server)) {
            return Vec::new();
        }
        let asks = |point: ResumePoint| {
            let servers = self.candidates(setup, point.revision).into_iter();
            let asks: Vec<_> = servers
                .map(|server| Step::Chooses(server, point.revision))
                .collect();
            asks
        };
        let position = self.resume_point(setup);
        let proved = position.and_then(|_| self.proved_resume_point(setup));
        let mut asks = proved.into_iter().chain(position).map(asks);
        if let Some(asks) = asks.find(|asks| !asks.is_empty()) {
            return asks;
        }
        let mut steps = Vec::new();
        if self.is_told_more() {
            steps.push(Step::Tells);
        }
        if held {
            steps.push(Step::Ends);
        }
        steps
    }

    fn forgets(&self, setup: &Setup) -> bool {
        setup.mutation == Some(Mutation::RestoreForgotten)
    }

    /// `Watch::resume_point`.
    fn resume_point(&self, setup: &Setup) -> Option<ResumePoint> {
        let served_by = &self.served_by;
        let is_same_etcd = self.forgets(setup) || served_by.restores == self.etcd.restores();
        let point = self.follower.resume_point();
        let point = point.filter(|_| served_by.stored_here && is_same_etcd)?;
        match (setup.mutation, self.follower.position()) {
            (Some(Mutation::WholeRevision), Some(position)) => {
                self.follower.resume_point_at(position.revision)
            }
            _ => Some(point),
        }
    }

    /// `Watch::proved_resume_point`.
    fn proved_resume_point(&self, setup: &Setup) -> Option<ResumePoint> {
        self.follower.resume_point_at(self.newest_safe(setup)?)
    }

    /// `Watch::newest_safe`.
    fn newest_safe(&self, setup: &Setup) -> Option<i64> {
        let forgets = [Mutation::RestoreForgotten, Mutation::BookmarkOfBefore];
        let forgets = setup.mutation.is_some_and(|it| forgets.contains(&it));
        if !forgets && self.served_by.restores != self.etcd.restores() {
            return None;
        }
        let position = self.follower.position()?;
        let log = self.served_by.log.as_ref()?;
        newest_safe(position, "", log, self.served_by.stored_here).ok()
    }

    /// `plan::successor`: the servers of which one is asked.
    fn candidates(&self, setup: &Setup, since: i64) -> Vec<usize> {
        let forgets = self.forgets(setup);
        let (snapshot, local) = snapshot((&self.etcd, &self.servers), setup.kinds, LOCAL, forgets);
        let version = match setup.mutation {
            Some(Mutation::OlderServer) => Kind::Older.version(),
            _ => setup.kinds[self.served_by.server].version(),
        };
        let stopped = StoppedWatch {
            resource: THINGS,
            since,
            version,
            has_rare_parameters: false,
        };
        let is_avoided = |server: &usize| self.refused[*server] || self.paused[*server];
        if stopped.suits_local(&snapshot, local) && !is_avoided(&LOCAL) {
            return vec![LOCAL];
        }
        let suitable = stopped.suitable(&snapshot);
        let suitable = suitable.map(|server| server.id.parse().unwrap());
        suitable.filter(|server| !is_avoided(server)).collect()
    }

    /// `HandOver::prove`: it is known where the server keeps the resource.
    pub(super) fn chooses(&mut self, setup: &Setup, server: usize, revision: i64) {
        let points = [self.resume_point(setup), self.proved_resume_point(setup)];
        let mut points = points.into_iter().flatten();
        let stored_here = match setup.mutation {
            Some(Mutation::ProofOfAnother) => self.served_by.stored_here,
            _ => self.is_stored_by(setup, server),
        };
        match points.find(|point| point.revision == revision) {
            Some(point) if stored_here => self.chosen = Some((server, point)),
            _ => self.paused[server] = true,
        }
    }

    /// The rest of `HandOver::ask`.
    pub(super) fn asks(&mut self, setup: &Setup) {
        let Some((server, point)) = self.chosen.take() else {
            return;
        };
        let looks = setup.mutation != Some(Mutation::OneLook);
        if looks && self.resume_point(setup).is_none() {
            return;
        }
        let asked = match setup.mutation {
            Some(Mutation::PositionTooHigh) => point.revision + 1,
            _ => point.revision,
        };
        let before = match setup.mutation {
            Some(Mutation::Twice) => self.follower.clone(),
            _ => self.follower.resumes(point),
        };
        let failed = match self.answer(setup, server, asked) {
            Answer::Goes(by) => {
                self.serves(by, asked, true);
                self.served_by = ServedBy {
                    server,
                    restores: self.etcd.restores(),
                    stored_here: true,
                    log: None,
                };
                return;
            }
            Answer::Expired => &mut self.refused,
            Answer::Unavailable => &mut self.paused,
        };
        failed[server] = true;
        if setup.mutation != Some(Mutation::AskedInVain) {
            self.follower = before;
        }
    }

    /// Whether a server is proved to keep the resource in this etcd: `ServedBy::new` asks nothing of one whose history is void.
    pub(super) fn is_stored_by(&self, setup: &Setup, server: usize) -> bool {
        let is_void = self.servers[server].is_void(&self.etcd) && !self.forgets(setup);
        !is_void && is_stored(&self.etcd, setup.kinds[server])
    }

    /// What comes of a watch after `revision` at the local apiserver or at a peer's proxy.
    fn answer(&self, setup: &Setup, server: usize, revision: i64) -> Answer {
        if server == LOCAL {
            return self.apiserver_answer(setup, LOCAL, revision);
        }
        let forgets = self.forgets(setup);
        let (snapshot, _) = snapshot((&self.etcd, &self.servers), setup.kinds, server, forgets);
        let input = RoutingInput {
            resource: Some(THINGS),
            rerouted: setup.mutation != Some(Mutation::SecondHop),
            resume: Some(revision),
            wanted: None,
        };
        let own = &self.servers[server];
        let local = LocalServer {
            epoch: 1,
            initialized: own.up,
            history_start: own.cache_start,
        };
        let decision = decide(input, &Settings::DEFAULT, local, &snapshot, || false);
        let answers = decision.order.iter().flat_map(|choice| match choice {
            ServerChoice::Local => vec![server],
            ServerChoice::Peers(peers) => {
                let peers = peers.indices.iter().map(|index| &snapshot.servers[*index]);
                peers.map(|peer| peer.id.parse().unwrap()).collect()
            }
            ServerChoice::Nowhere => Vec::new(),
        });
        let mut answers = answers.map(|server| self.apiserver_answer(setup, server, revision));
        let answer = answers.find(|answer| *answer != Answer::Unavailable);
        answer.unwrap_or(Answer::Unavailable)
    }

    fn apiserver_answer(&self, setup: &Setup, server: usize, revision: i64) -> Answer {
        let own = &self.servers[server];
        let kind = setup.kinds[server];
        match (kind, own.up && !own.stopping) {
            (_, false) => Answer::Unavailable,
            (Kind::Refuses, _) => Answer::Expired,
            (Kind::Plain | Kind::Older, _) if revision < own.cache_start => Answer::Expired,
            _ => Answer::Goes(server),
        }
    }

    fn is_told_more(&self) -> bool {
        let is_here = self.served_by.restores == self.etcd.restores();
        match &self.served_by.log {
            Some(log) => log.through() < self.etcd.revision(),
            None => is_here,
        }
    }

    /// etcd has told all changes so far: `Watch::register`, and `change_logs`.
    pub(super) fn tells(&mut self) {
        let is_here = self.served_by.restores == self.etcd.restores();
        let begin = match (&self.served_by.log, self.follower.position()) {
            (Some(log), _) => log.through() + 1,
            (None, Some(position)) if is_here && self.served_by.stored_here => position.revision,
            _ => return,
        };
        let compacted = self.etcd.compacted;
        let log = match self.served_by.log.take() {
            _ if begin < compacted => ChangeLog::new(compacted + 1),
            Some(log) => log,
            None => ChangeLog::new(begin),
        };
        let begin = begin.max(log.through() + 1);
        let log = self.served_by.log.insert(log);
        for revision in begin..=self.etcd.revision() {
            let change = self.etcd.change(self.etcd.restores(), revision);
            let names = change.map_or(&[][..], |(_, change): (_, Change)| change.names(false));
            for name in names {
                log.changed(revision, name);
            }
        }
        log.complete_through(self.etcd.revision());
    }

    /// Nobody goes on with it: `FinalBookmark::after_break`. Where the end is a reset, the client lists again.
    pub(super) fn ends(&mut self, setup: &Setup) -> Result<(), String> {
        let is_judged = setup.mutation.is_none() && !self.is_told_more();
        if let Some(server) = self.could_go_on(setup).filter(|_| is_judged) {
            return Err(format!("it ends, and {server} could go on"));
        }
        self.place = Place::Ended;
        if !self.follower.frames.at_boundary() {
            return Ok(());
        }
        if self.served_by.restores == self.etcd.restores() {
            self.tells();
        }
        let (wanted, newest) = self.wanted(setup);
        let bookmark = match setup.mutation {
            Some(Mutation::NewestBookmark) => Some(self.etcd.revision()),
            _ => self.newest_safe(setup),
        };
        if let Some(revision) = bookmark {
            let format = self.follower.frames.format;
            let frame = format.bookmark(&thing(), revision).unwrap();
            self.client.reads(&frame, &wanted, newest)?;
        }
        match !setup.strict && self.client.is_within_revision(&wanted) {
            true => Ok(()),
            false => self.client.comes_back(&wanted),
        }
    }

    /// A server that is ready, of which everything is known, and that has all that the client misses. Its keys are a change of
    /// etcd, so that its history begins after the last event.
    fn could_go_on(&self, setup: &Setup) -> Option<usize> {
        let point = self.resume_point(setup)?.revision;
        let revision = self.follower.position()?.revision;
        let (wanted, _) = self.wanted(setup);
        let missed = self.client.next(&wanted);
        let safe = missed.map_or(self.etcd.revision(), |missed| missed - 1);
        let is_told = self.etcd.compacted <= point && safe > revision;
        let has_all = |start: i64| start <= point || is_told && start <= safe;
        (0..self.servers.len()).find(|index| {
            let server = &self.servers[*index];
            let is_known = server.published && server.known.ready && !server.is_void(&self.etcd);
            server.up
                && !server.stopping
                && is_known
                && setup.kinds[*index] == Kind::Plain
                && !self.refused[*index]
                && has_all(server.known.history_start)
        })
    }
}
