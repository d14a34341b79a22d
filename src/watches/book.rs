//! What is known of one resource while watches of it end: shared by all of them.
//!
//! Written by [`super::archive`], and by watches that say from where on they need it and what they were delivered. A
//! lock is held for moments, and only while the proxy stops.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::chronicle::Chronicle;
use super::follower::{Position, Witness};
use super::proof::{Withheld, newest_safe};

/// Objects that are looked for in etcd, of what one server delivered.
const CANDIDATES: usize = 8;
/// Servers that may have delivered some.
const SERVERS: usize = 64;
/// After a question how far etcd is.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// What is known of the keys below one prefix.
#[derive(Debug)]
pub struct Book {
    /// The prefix, up to a slash.
    pub(super) root: String,
    /// Somebody waits to be told how far etcd is.
    pub(super) wanted: Notify,
    /// Changes whenever something was told.
    told: watch::Sender<()>,
    pages: Mutex<Pages>,
}

#[derive(Debug, Default)]
struct Pages {
    /// From where on it is needed.
    needed: Option<i64>,
    chronicle: Option<Chronicle>,
    /// Where etcd was when its watch was first opened.
    goal: Option<i64>,
    delivered: HashMap<SocketAddr, Delivered>,
}

/// What was delivered by one server: whether it keeps the resource in our etcd.
#[derive(Debug, Default)]
struct Delivered {
    /// One was found where it should be.
    found: bool,
    candidates: Vec<Witness>,
}

impl Book {
    pub(super) fn new(root: &str) -> Self {
        Self {
            root: root.to_owned(),
            wanted: Notify::new(),
            told: watch::Sender::new(()),
            pages: Mutex::default(),
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A watch ends soon whose client is at `position`; `witnesses` are what `server` delivered to it last, or to others.
    pub(super) fn enlist<'w>(
        &self,
        position: Position,
        server: SocketAddr,
        witnesses: impl IntoIterator<Item = &'w Witness>,
    ) {
        let mut pages = self.pages();
        let needed = pages
            .needed
            .map_or(position.revision, |needed| needed.min(position.revision));
        pages.needed = Some(needed);
        let room = pages.delivered.len() < SERVERS || pages.delivered.contains_key(&server);
        for witness in witnesses.into_iter().filter(|_| room) {
            pages.delivered.entry(server).or_default().add(witness);
        }
    }

    /// Waits until etcd has told of all that it had when it was first asked.
    pub async fn caught_up(&self) {
        let mut told = self.told.subscribe();
        loop {
            // What comes after that is told too, and good for those who ask later.
            self.wanted.notify_one();
            if self.pages().is_caught_up() {
                return;
            }
            // An etcd that is not done with what changed leaves the question without an answer.
            let _ = timeout(ASK_AGAIN, told.changed()).await;
        }
    }

    /// The newest revision that is safe for a client at `position` that watches the keys that begin with `scope`.
    pub fn answer(
        &self,
        position: Position,
        scope: &str,
        server: SocketAddr,
        witness: Option<&Witness>,
    ) -> Result<i64, Withheld> {
        let mut pages = self.pages();
        let Pages {
            chronicle,
            delivered,
            ..
        } = &mut *pages;
        let chronicle = chronicle.as_ref().ok_or(Withheld::NotTold)?;
        let told = |witness: &Witness| chronicle.has(witness.revision, &witness.key);
        let known = delivered
            .get(&server)
            .is_some_and(|delivered| delivered.found || delivered.candidates.iter().any(told));
        newest_safe(
            position,
            scope,
            chronicle,
            known || witness.is_some_and(told),
        )
    }

    /// Where a watch of etcd has to begin, or go on.
    pub(super) fn next(&self) -> i64 {
        let pages = self.pages();
        match &pages.chronicle {
            Some(chronicle) => chronicle.through() + 1,
            None => pages.needed.unwrap_or(1),
        }
    }

    /// etcd has forgotten what was before `from`.
    pub(super) fn begin_again(&self, from: i64) {
        self.pages().chronicle = Some(Chronicle::new(from));
    }

    /// etcd, which is at `newest`, told of these changes, and that there are no others up to `through`, if that is known.
    pub(super) fn tell<'a>(
        &self,
        begin: i64,
        changes: impl Iterator<Item = (i64, Cow<'a, str>)>,
        through: Option<i64>,
        newest: Option<i64>,
    ) {
        let mut pages = self.pages();
        pages.goal = pages.goal.or(newest);
        let chronicle = pages.chronicle.get_or_insert_with(|| Chronicle::new(begin));
        for (revision, key) in changes {
            chronicle.changed(revision, &key);
        }
        if let Some(through) = through {
            chronicle.complete_through(through);
        }
        drop(pages);
        self.told.send_replace(());
    }

    /// What to look for in etcd: one server's objects, as long as none of them was found.
    pub(super) fn sought(&self) -> Vec<(SocketAddr, Vec<Witness>)> {
        let pages = self.pages();
        let servers = pages
            .delivered
            .iter()
            .filter(|(_, delivered)| !delivered.found);
        servers
            .map(|(server, delivered)| (*server, delivered.candidates.clone()))
            .collect()
    }

    /// One of a server's objects is in etcd as it was delivered.
    pub(super) fn found(&self, server: SocketAddr) {
        self.pages().delivered.entry(server).or_default().found = true;
    }
}

impl Pages {
    fn is_caught_up(&self) -> bool {
        let through = self.chronicle.as_ref().map(Chronicle::through);
        self.goal.is_some() && through >= self.goal
    }
}

impl Delivered {
    /// The newest are kept: etcd has not forgotten them.
    fn add(&mut self, witness: &Witness) {
        if self.candidates.contains(witness) {
            return;
        }
        self.candidates.push(witness.clone());
        self.candidates
            .sort_unstable_by_key(|witness| std::cmp::Reverse(witness.revision));
        self.candidates.truncate(CANDIDATES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ([u8; 4], u16) = ([127, 0, 0, 1], 6443);

    fn at(revision: i64) -> Position {
        Position { revision, seen: 1 }
    }

    fn witness(revision: i64, key: &str) -> Witness {
        Witness {
            key: key.to_owned(),
            revision,
        }
    }

    fn tell(book: &Book, changes: &[(i64, &'static str)], through: Option<i64>, newest: i64) {
        let changes = changes.iter().map(|(at, key)| (*at, (*key).into()));
        book.tell(book.next(), changes, through, Some(newest));
    }

    async fn is_caught_up(book: &Book) -> bool {
        timeout(Duration::ZERO, book.caught_up()).await.is_ok()
    }

    #[tokio::test]
    async fn what_is_caught_up_with_is_not_how_far_etcd_is() {
        let book = Book::new("/registry/pods/");
        book.enlist(at(5), SERVER.into(), None);
        assert!(!is_caught_up(&book).await);
        tell(&book, &[], None, 9);
        tell(&book, &[(5, "a/x")], Some(5), 9);
        assert!(!is_caught_up(&book).await, "etcd was at 9");
        tell(&book, &[], Some(10), 10);
        assert!(is_caught_up(&book).await);
        tell(&book, &[(12, "a/x")], Some(12), 30);
        assert!(is_caught_up(&book).await, "it was once");
    }

    #[test]
    fn it_begins_where_the_first_needs_it_and_goes_on_where_it_stopped() {
        let book = Book::new("/registry/pods/");
        for revision in [7, 5, 6] {
            book.enlist(at(revision), SERVER.into(), None);
        }
        assert_eq!(book.next(), 5);
        tell(&book, &[(5, "a/x")], Some(8), 8);
        assert_eq!(book.next(), 9);
        book.begin_again(20);
        assert_eq!(book.next(), 20);
        assert_eq!(
            book.answer(at(8), "", SERVER.into(), None),
            Err(Withheld::NotFound)
        );
        book.found(SERVER.into());
        assert_eq!(
            book.answer(at(8), "", SERVER.into(), None),
            Err(Withheld::Forgotten)
        );
    }

    #[test]
    fn one_server_s_objects_say_nothing_of_another_s() {
        let book = Book::new("/registry/pods/");
        let other = ([127, 0, 0, 2], 6443).into();
        book.enlist(at(5), SERVER.into(), Some(&witness(5, "a/x")));
        book.enlist(at(5), other, Some(&witness(5, "a/y")));
        assert_eq!(book.sought().len(), 2);
        tell(&book, &[(5, "a/x")], Some(9), 9);
        assert_eq!(book.answer(at(5), "", SERVER.into(), None), Ok(9));
        assert_eq!(book.answer(at(5), "", other, None), Err(Withheld::NotFound));
        let own = witness(5, "a/x");
        assert_eq!(book.answer(at(5), "", other, Some(&own)), Ok(9));
    }

    #[test]
    fn what_a_server_delivered_to_others_counts_for_a_watch_that_saw_nothing() {
        let book = Book::new("/registry/pods/");
        let listed = [witness(2, "a/x"), witness(3, "a/y")];
        let quiet = Position {
            revision: 5,
            seen: 0,
        };
        book.enlist(quiet, SERVER.into(), &listed);
        assert_eq!(book.sought()[0].1.len(), 2);
        tell(&book, &[], Some(9), 9);
        let answer = || book.answer(quiet, "", SERVER.into(), None);
        assert_eq!(answer(), Err(Withheld::NotFound));
        book.found(SERVER.into());
        assert_eq!(answer(), Ok(9));
    }

    #[test]
    fn of_many_objects_the_newest_are_looked_for() {
        let book = Book::new("/registry/pods/");
        for revision in 1..100 {
            book.enlist(at(revision), SERVER.into(), Some(&witness(revision, "a/x")));
            book.enlist(at(revision), SERVER.into(), Some(&witness(revision, "a/x")));
        }
        let sought = book.sought();
        let revisions: Vec<_> = sought[0].1.iter().map(|witness| witness.revision).collect();
        assert_eq!(revisions, (92..100).rev().collect::<Vec<_>>());
    }
}
