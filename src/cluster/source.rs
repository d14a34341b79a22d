//! The interface between the followers and etcd, so that tests can replace etcd.

use async_trait::async_trait;

/// A key and its value, as of the revision that wrote it. Keys are relative to the prefix that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdItem {
    /// Key without the prefix.
    pub key: String,
    /// Value; empty where only keys were asked for.
    pub value: Vec<u8>,
    /// Revision of the write that made it.
    pub create_revision: i64,
    /// Revision of the last write.
    pub mod_revision: i64,
}

/// The events of one topic, in this order: `Init`, any number of `InitApply`, `InitDone`, then the rest in any order
/// until the next `Init`, before which `OtherHistory` may come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new list begins.
    Init,
    /// A key of the list.
    InitApply(EtcdItem),
    /// The list is complete as of this revision.
    InitDone(i64),
    /// A key was written.
    Apply(EtcdItem),
    /// A key is gone.
    Delete(String),
    /// All changes up to this revision have been sent.
    Progress(i64),
    /// etcd was restored or replaced: earlier events may be void. A new list follows.
    OtherHistory,
    /// etcd's role does not permit to read it (optional topics only). It is tried again.
    Forbidden,
}

/// What is below a prefix at one revision, or a part of it.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// The revision.
    pub revision: i64,
    /// In the order of their keys.
    pub items: Vec<EtcdItem>,
    /// What is to be asked for next; `None`: nothing is left.
    pub rest: Option<ListingRest>,
}

/// The part of a listing that was not read yet.
#[derive(Debug, Clone)]
pub struct ListingRest {
    /// Its first key.
    pub(super) from: Vec<u8>,
    /// At the revision of the first part; 0: this is the first part.
    pub(super) revision: i64,
    /// Keys to ask for.
    pub(super) limit: i64,
}

/// Changes, complete up to a revision. Without changes it is a progress notification.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Everything up to and including this revision has been delivered; 0: only that the watch lives.
    pub revision: i64,
    /// [`Event::Apply`] and [`Event::Delete`], in order.
    pub changes: Vec<Event>,
}

/// Why a list or watch failed.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The revision asked for is compacted: a new list is needed.
    #[error("revision is compacted, oldest available is {0}")]
    Compacted(i64),
    /// etcd was restored from a backup, or replaced: what is known may be wrong.
    #[error("etcd has another history than before: {0}")]
    OtherHistory(String),
    /// No answer in time.
    #[error("no answer from etcd in time")]
    Timeout,
    /// The stream ended.
    #[error("etcd ended the watch: {0}")]
    Ended(String),
    /// Connection, TLS, permission, anything else.
    #[error("etcd request failed")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl SourceError {
    /// What happened; for a failed request only the cause.
    pub fn said(&self) -> String {
        match self {
            Self::Failed(cause) => cause.to_string(),
            other => other.to_string(),
        }
    }

    /// Whether etcd's role does not permit it.
    pub fn is_denied(&self) -> bool {
        self.said().contains("permission denied")
    }

    /// Whether etcd has no state of the revision that was asked for: it has not been written yet, or is compacted.
    pub fn is_out_of_range(&self) -> bool {
        self.said().contains("mvcc: required revision")
    }

    /// Whether etcd has compacted the revision that was asked for.
    pub fn is_compacted(&self) -> bool {
        self.said().contains("required revision has been compacted")
    }

    /// Whether an answer has more bytes than this program takes, or than etcd sends.
    pub fn is_too_large(&self) -> bool {
        let said = self.said();
        said.contains("message length too large") || said.contains("message larger than max")
    }
}

/// Lists and watches the keys below one prefix.
#[async_trait]
pub trait WatchSource: Send {
    /// What is there at one revision: the first part, or the `rest` of the part before.
    async fn list(&mut self, rest: Option<ListingRest>) -> Result<Listing, SourceError>;

    /// Changes from revision `from` on, that one included. Everything before it has been sent: a source that has not reached
    /// it yet returns [`SourceError::OtherHistory`].
    async fn watch(&mut self, from: i64) -> Result<Box<dyn ChangeStream>, SourceError>;
}

/// An open watch.
#[async_trait]
pub trait ChangeStream: Send {
    /// The next changes or progress.
    async fn next(&mut self) -> Result<Batch, SourceError>;
}
