//! Asks etcd what changed, for watches that end: one watch of etcd for each resource, shared by all watches of it.
//!
//! It is opened when the first of them asks, a moment later so that all have said from where on they need it, and stays
//! open until the process ends: those that end later need what came later. Nothing of a value is kept. Progress counts as
//! [`crate::cluster::etcd`] believes it.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{Client, GetOptions, WatchOptions, WatchResponse, WatchStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::book::Book;
use super::follower::{Position, Witness};
use crate::cluster::connector::{Connector, failed, within};
use crate::cluster::etcd::{MAX_MESSAGE, WHOLE_STREAM, orders_requested_progress, range_end};
use crate::cluster::source::SourceError;

/// Resources at most.
const BOOKS: usize = 1024;
/// Watches of etcd that are being opened at a time.
const OPENING: usize = 8;
/// How long those that need a resource are waited for.
const GATHER: Duration = Duration::from_millis(100);
/// Between two requests for progress.
const PACE: Duration = Duration::from_millis(100);
/// After a watch of etcd broke off.
const PAUSE: Duration = Duration::from_millis(500);

/// What watches that end are told by.
#[derive(Debug)]
pub struct Archive {
    books: Mutex<HashMap<String, Arc<Book>>>,
    opened: mpsc::Sender<Arc<Book>>,
}

impl Archive {
    /// And what [`run`] needs.
    pub fn new() -> (Self, mpsc::Receiver<Arc<Book>>) {
        let (opened, books) = mpsc::channel(BOOKS);
        let archive = Self {
            books: Mutex::default(),
            opened,
        };
        (archive, books)
    }

    /// What is known below `root`, from the client's `position` on; `witnesses` are what `server` delivered to it last,
    /// or to others. None if there are too many.
    pub fn enlist<'w>(
        &self,
        root: &str,
        position: Position,
        server: SocketAddr,
        witnesses: impl IntoIterator<Item = &'w Witness>,
    ) -> Option<Arc<Book>> {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let book = match books.get(root) {
            Some(book) => book.clone(),
            None => {
                let book = Arc::new(Book::new(root));
                self.opened.try_send(book.clone()).ok()?;
                books.insert(root.to_owned(), book.clone());
                book
            }
        };
        book.enlist(position, server, witnesses);
        Some(book)
    }
}

/// Keeps the books that are asked for, for ever.
pub async fn run(connector: Connector, mut opened: mpsc::Receiver<Arc<Book>>) {
    let keeper = Arc::new(Keeper {
        connector: tokio::sync::Mutex::new((connector, None)),
        opening: Semaphore::new(OPENING),
    });
    let mut kept = JoinSet::new();
    while let Some(book) = opened.recv().await {
        let keeper = keeper.clone();
        kept.spawn(async move {
            tokio::time::sleep(GATHER).await;
            loop {
                let Err(error) = keeper.keep(&book).await;
                match error {
                    // Deletions at that very revision may be forgotten, too.
                    SourceError::Compacted(oldest) => book.begin_again(oldest + 1),
                    error => {
                        tracing::warn!(
                            root = book.root,
                            error = &error as &dyn Error,
                            "etcd broke off while it told what changed"
                        );
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        });
    }
}

/// A client, and whether its etcd orders the progress that is asked for.
type Connected = (Client, bool);

struct Keeper {
    connector: tokio::sync::Mutex<(Connector, Option<Connected>)>,
    opening: Semaphore,
}

enum Never {}

impl Keeper {
    /// The client that all share; a new one after a failure.
    async fn client(&self) -> Result<Connected, SourceError> {
        let mut guard = self.connector.lock().await;
        let (connector, connected) = &mut *guard;
        if let Some(connected) = connected {
            return Ok(connected.clone());
        }
        let mut client = connector.connect().await?;
        let ordered = match within(client.status()).await {
            Ok(status) => orders_requested_progress(status.version()),
            Err(_) => false,
        };
        *connected = Some((client.clone(), ordered));
        Ok((client, ordered))
    }

    /// Goes on with a book until etcd's watch breaks off.
    async fn keep(&self, book: &Book) -> Result<Never, SourceError> {
        let opening = self.opening.acquire().await;
        let (client, ordered) = self.client().await?;
        let begin = book.next();
        let opened = open(&client, &book.root, begin).await;
        if opened.is_err() {
            self.connector.lock().await.1 = None;
        }
        let mut stream = opened?;
        look(client, book).await;
        drop(opening);
        loop {
            let message = tokio::select! {
                message = stream.message() => message.map_err(failed)?,
                () = book.wanted.notified(), if ordered => {
                    within(stream.request_progress()).await?;
                    tokio::time::sleep(PACE).await;
                    continue;
                }
            };
            let message = message.ok_or_else(|| SourceError::Ended("end of stream".to_owned()))?;
            read(book, begin, &message, ordered)?;
        }
    }
}

async fn open(client: &Client, root: &str, begin: i64) -> Result<WatchStream, SourceError> {
    let mut watcher = client.watch_client().max_decoding_message_size(MAX_MESSAGE);
    let options = WatchOptions::new()
        .with_range(range_end(root))
        .with_start_revision(begin)
        .with_progress_notify();
    within(watcher.watch(root, Some(options))).await
}

fn read(
    book: &Book,
    begin: i64,
    message: &WatchResponse,
    ordered: bool,
) -> Result<(), SourceError> {
    if message.compact_revision() > 0 {
        return Err(SourceError::Compacted(message.compact_revision()));
    }
    if message.canceled() {
        return Err(SourceError::Ended(message.cancel_reason().to_owned()));
    }
    let newest = message.header().map(|header| header.revision());
    // That a watch was created says nothing of what it has delivered.
    let believed = !message.created() && (message.watch_id() != WHOLE_STREAM || ordered);
    let progress = newest.filter(|_| believed);
    let changes: Vec<_> = message
        .events()
        .iter()
        .filter_map(|event| event.kv())
        .collect();
    // With changes, only they are known to have been told.
    let told = changes.iter().map(|kv| kv.mod_revision()).max();
    let changes = changes.iter().map(|kv| {
        let key = kv.key().strip_prefix(book.root.as_bytes());
        (
            kv.mod_revision(),
            String::from_utf8_lossy(key.unwrap_or_default()),
        )
    });
    book.tell(begin, changes, told.or(progress), newest);
    Ok(())
}

/// Looks for objects that servers delivered, those that will not be seen to change. What fails is not found.
async fn look(client: Client, book: &Book) {
    let mut client = client.kv_client();
    for (server, witnesses) in book.sought() {
        for Witness { key, revision } in witnesses {
            let key = format!("{}{key}", book.root);
            let options = || GetOptions::new().with_keys_only();
            let now = within(client.get(key.as_str(), Some(options()))).await;
            let then = options().with_revision(revision);
            let is_it = |answer: etcd_client::GetResponse| {
                answer.kvs().iter().any(|kv| kv.mod_revision() == revision)
            };
            let found = now.is_ok_and(is_it)
                || within(client.get(key.as_str(), Some(then)))
                    .await
                    .is_ok_and(is_it);
            if found {
                book.found(server);
                break;
            }
        }
    }
}
