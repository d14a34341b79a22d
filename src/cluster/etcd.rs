//! etcd over TLS as a [`WatchSource`].

use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{
    Client, EventType, GetOptions, KeyValue, KvClient, ResponseHeader, WatchOptions, WatchResponse,
    WatchStream,
};

use super::connector::{Connector, REQUEST_TIMEOUT, Session, failed, within};
use super::source::{
    Batch, ChangeStream, EtcdItem, Event, Listing, ListingRest, SourceError, WatchSource,
};
use crate::kube::version::numbers;

/// A catch-up after a long break comes as one message from what is not etcd, and one value can be as large as its limit
/// for requests; the library's default of 4 MiB would fail them for ever.
const MAX_MESSAGE: usize = 256 << 20;
/// Largest answer to a list, unless it has one value only. 10 of them fit at etcd's default limit of 1.5 MiB.
const MAX_PAGE: usize = 16 << 20;
/// Values of the first page. Each page is to have twice as many as the one before, if that was small, or half as many as
/// failed.
const FIRST_VALUES: i64 = 10;
/// Bytes of a page after which the next one may have twice as many.
const GOOD_PAGE: usize = 4 << 20;
const MOST_VALUES: i64 = 250;
/// For each page etcd counts all keys that are left, so many small ones take the square of their number.
const KEYS_PAGE: i64 = 10_000;
/// etcd cuts changes into messages of its limit for requests and 512 KiB more. The changes of one revision came with one
/// request. So a message that ends within a revision has at least these 512 KiB; half of that leaves room for keys.
const MAYBE_CUT: usize = 256 << 10;
/// Longest key below a prefix. Names in Kubernetes have 253 bytes at most, and some keys end in an address.
const MAX_KEY: usize = 320;

/// etcd, followed through a connection of its own.
pub struct EtcdSource {
    etcd: Session,
    prefix: String,
    patience: Duration,
    /// ID of the cluster that was listed; 0: it did not say.
    cluster: u64,
}

impl EtcdSource {
    /// Connects when first asked. `patience`: a watch that is quiet for longer is asked whether it lives.
    pub fn new(connector: Connector, prefix: String, patience: Duration) -> Self {
        Self {
            etcd: Session::new(connector),
            prefix,
            patience,
            cluster: 0,
        }
    }
}

#[async_trait]
impl WatchSource for EtcdSource {
    async fn list(&mut self, rest: Option<ListingRest>) -> Result<Listing, SourceError> {
        let prefix = &*self.prefix;
        let mut wanted = rest.unwrap_or_else(|| first_part(prefix, false));
        loop {
            let client = self.etcd.take().await?;
            match list_part(&client.kv_client(), prefix, false, wanted.clone()).await {
                // The next member is asked; over a slow link less may pass.
                Err(SourceError::Timeout) if wanted.limit > 1 => wanted.limit /= 2,
                listed => {
                    let (part, cluster) = listed?;
                    self.cluster = cluster;
                    self.etcd.keep(client);
                    return Ok(part);
                }
            }
        }
    }

    async fn watch(&mut self, from: i64) -> Result<Box<dyn ChangeStream>, SourceError> {
        let prefix = &*self.prefix;
        let mut client = self.etcd.take().await?;
        // Another connection may lead to another server.
        let version = version(&mut client).await?;
        let mut changes = EtcdChanges {
            prefix: prefix.to_owned(),
            stream: watch(&client, prefix, from).await?,
            client: client.clone(),
            patience: self.patience,
            asks: !version.is_empty(),
            ordered: orders_requested_progress(&version),
        };
        changes.begin(from - 1, self.cluster).await?;
        self.etcd.keep(client);
        Ok(Box::new(changes))
    }
}

/// etcd's version; empty if it does not tell. Such a one is trusted with nothing.
pub async fn version(client: &mut Client) -> Result<String, SourceError> {
    match within(client.status()).await {
        Ok(status) => Ok(status.version().to_owned()),
        Err(SourceError::Timeout) => Err(SourceError::Timeout),
        Err(_) => Ok(String::new()),
    }
}

/// Watches what is below `prefix`.
pub async fn watch(client: &Client, prefix: &str, from: i64) -> Result<WatchStream, SourceError> {
    let mut watcher = client.watch_client().max_decoding_message_size(MAX_MESSAGE);
    let options = WatchOptions::new()
        .with_range(range_end(prefix))
        .with_start_revision(from)
        .with_progress_notify()
        .with_fragment();
    within(watcher.watch(prefix, Some(options))).await
}

/// Everything below `prefix` at one revision.
pub async fn list(kv: KvClient, prefix: &str, keys_only: bool) -> Result<Listing, SourceError> {
    let mut all = Listing::default();
    let mut next = Some(first_part(prefix, keys_only));
    while let Some(wanted) = next {
        let (part, _) = list_part(&kv, prefix, keys_only, wanted).await?;
        all.revision = part.revision;
        all.items.extend(part.items);
        next = part.rest;
    }
    Ok(all)
}

/// The first part of what is below `prefix`.
fn first_part(prefix: &str, keys_only: bool) -> ListingRest {
    ListingRest {
        from: prefix.as_bytes().to_vec(),
        revision: 0,
        limit: match keys_only {
            true => KEYS_PAGE,
            false => FIRST_VALUES,
        },
    }
}

/// A part of what is below `prefix`, and the ID of the cluster; 0: it did not say.
async fn list_part(
    kv: &KvClient,
    prefix: &str,
    keys_only: bool,
    mut wanted: ListingRest,
) -> Result<(Listing, u64), SourceError> {
    let mut page = loop {
        let mut options = GetOptions::new()
            .with_range(range_end(prefix))
            .with_limit(wanted.limit)
            .with_revision(wanted.revision);
        if keys_only {
            options = options.with_keys_only();
        }
        let most = match wanted.limit {
            1 => MAX_MESSAGE,
            _ => MAX_PAGE,
        };
        let mut kv = kv.clone().max_decoding_message_size(most);
        match within(kv.get(wanted.from.as_slice(), Some(options))).await {
            Err(error) if error.is_too_large() && wanted.limit > 1 => wanted.limit /= 2,
            page => break page?,
        }
    };
    let (revision, cluster) = (revision(page.header()), cluster(page.header()));
    let (more, kvs) = (page.more(), page.take_kvs());
    if wanted.revision == 0 {
        wanted.revision = revision;
    }
    if !keys_only {
        wanted.limit = next_limit(wanted.limit, kvs.iter().map(size).sum());
    }
    let last = kvs.last().filter(|_| more);
    let from = last.map(|last| [last.key(), b"\0"].concat());
    let part = Listing {
        revision: wanted.revision,
        items: kvs.into_iter().filter_map(|kv| item(prefix, kv)).collect(),
        rest: from.map(|from| ListingRest { from, ..wanted }),
    };
    Ok((part, cluster))
}

/// What to ask for after `limit` values, which had so many bytes. Twice as much as a large page would be too much, and
/// etcd would read it for nothing, again and again.
fn next_limit(limit: i64, bytes: usize) -> i64 {
    match bytes {
        0..=GOOD_PAGE => MOST_VALUES.min(limit * 2),
        _ => limit,
    }
}

fn size(kv: &KeyValue) -> usize {
    kv.key().len() + kv.value().len()
}

/// Whether requested progress comes after all changes that it speaks of, in etcd of this version: before 3.4.25 and
/// 3.5.8 it could overtake them (etcd#15220), in rare cases until 3.4.31 and 3.5.13. kine says no version.
pub fn orders_requested_progress(version: &str) -> bool {
    match numbers(version) {
        [3, 4, patch] => patch >= 31,
        [3, 5, patch] => patch >= 13,
        [major, minor, _] => (major, minor) > (3, 5),
    }
}

/// Requested progress belongs to the stream, not to a watcher, and says so with this ID.
const WHOLE_STREAM: i64 = -1;

struct EtcdChanges {
    prefix: String,
    stream: WatchStream,
    client: Client,
    patience: Duration,
    /// It can be asked for progress.
    asks: bool,
    /// And its answer can be relied on.
    ordered: bool,
}

#[async_trait]
impl ChangeStream for EtcdChanges {
    async fn next(&mut self) -> Result<Batch, SourceError> {
        loop {
            let batch = match self.message(self.patience).await {
                Err(SourceError::Timeout) => self.ask().await?,
                message => self.read(&message?)?,
            };
            if let Some(batch) = batch {
                return Ok(batch);
            }
        }
    }
}

impl EtcdChanges {
    /// Reads the first message, and makes sure that this is the etcd of which everything up to `known` has been told.
    ///
    /// One that was restored from a backup has not come so far. Once it has again, it cannot be told from the one
    /// before, unless it is another cluster: `etcdutl snapshot restore --bump-revision --mark-compacted` is for that.
    async fn begin(&mut self, known: i64, listed: u64) -> Result<(), SourceError> {
        let message = self.message(REQUEST_TIMEOUT).await?;
        if self.read(&message)?.is_some() {
            return Err(SourceError::Ended("no watch was created".to_owned()));
        }
        let here = cluster(message.header());
        if here != listed && here != 0 && listed != 0 {
            let what = format!("cluster {listed:x} was listed, this is {here:x}");
            return Err(SourceError::OtherHistory(what));
        }
        // The message of a member that lags behind says nothing.
        if revision(message.header()) >= known
            || newest(&mut self.client, &self.prefix).await? >= known
        {
            return Ok(());
        }
        let what = format!("revision {known} was known, and has not been written yet");
        Err(SourceError::OtherHistory(what))
    }

    /// The watch is quiet: a dead one must not be taken for one without changes.
    async fn ask(&mut self) -> Result<Option<Batch>, SourceError> {
        if !self.asks {
            // Not of this watch, but of the connection that it is on.
            newest(&mut self.client, &self.prefix).await?;
            return Ok(Some(Batch::default()));
        }
        within(self.stream.request_progress()).await?;
        let message = self.message(REQUEST_TIMEOUT).await?;
        self.read(&message)
    }

    async fn message(&mut self, patience: Duration) -> Result<WatchResponse, SourceError> {
        let message = tokio::time::timeout(patience, self.stream.message()).await;
        let message = message.map_err(|_| SourceError::Timeout)?.map_err(failed)?;
        message.ok_or_else(|| SourceError::Ended("end of stream".to_owned()))
    }

    /// What a message says; `None`: nothing.
    fn read(&self, message: &WatchResponse) -> Result<Option<Batch>, SourceError> {
        unless_ended(message)?;
        if message.created() {
            return Ok(None);
        }
        let change = |event: &etcd_client::Event| {
            let kv = event.kv()?;
            match event.event_type() {
                EventType::Put => item(&self.prefix, kv.clone()).map(Event::Apply),
                EventType::Delete => relative(&self.prefix, kv.key()).map(Event::Delete),
            }
        };
        Ok(Some(Batch {
            revision: told(message, self.ordered).unwrap_or(0),
            changes: message.events().iter().filter_map(change).collect(),
        }))
    }
}

/// The newest revision that most members agree on, which the answer to every read has. `key`: one that may be read.
pub async fn newest(client: &mut Client, key: &str) -> Result<i64, SourceError> {
    let options = GetOptions::new().with_limit(1).with_keys_only();
    let answer = within(client.get(key, Some(options))).await?;
    Ok(answer.header().ok_or(SourceError::Timeout)?.revision())
}

/// An error if it is the last message of a watch.
pub fn unless_ended(message: &WatchResponse) -> Result<(), SourceError> {
    match (message.compact_revision(), message.canceled()) {
        (oldest @ 1.., _) => Err(SourceError::Compacted(oldest)),
        (_, true) => Err(SourceError::Ended(message.cancel_reason().to_owned())),
        (_, false) => Ok(()),
    }
}

/// Up to which revision a message has told everything. `ordered`: requested progress can be relied on.
pub fn told(message: &WatchResponse, ordered: bool) -> Option<i64> {
    // Timed progress (no events) is sent to synced watchers alone. The first message has the revision of the store.
    let is_reliable = message.watch_id() != WHOLE_STREAM || ordered;
    let progress = message.header();
    let progress = progress.filter(|_| is_reliable && !message.created());
    delivered(message).or(progress.map(ResponseHeader::revision))
}

/// Up to which revision a message with changes has told everything. A watcher that catches up gets its changes in pieces,
/// each under the store's newest revision, and the last revision in a piece may go on in the next one.
fn delivered(message: &WatchResponse) -> Option<i64> {
    let changes = message.events().iter().filter_map(|event| event.kv());
    let bytes: usize = changes.clone().map(size).sum();
    let newest = changes.map(KeyValue::mod_revision).max()?;
    Some(newest - i64::from(bytes >= MAYBE_CUT))
}

/// 0 where there is none: kine's watches begin so.
fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, ResponseHeader::revision)
}

/// 0 where there is none: kine has no clusters.
fn cluster(header: Option<&ResponseHeader>) -> u64 {
    header.map_or(0, ResponseHeader::cluster_id)
}

fn item(prefix: &str, kv: KeyValue) -> Option<EtcdItem> {
    let key = relative(prefix, kv.key())?;
    let (create_revision, mod_revision) = (kv.create_revision(), kv.mod_revision());
    let (_, value) = kv.into_key_value();
    Some(EtcdItem {
        key,
        value,
        create_revision,
        mod_revision,
    })
}

/// The key below the prefix, for a single key its last segment. Keys that are not UTF-8, or longer than any name and
/// address together, are nobody's.
fn relative(prefix: &str, key: &[u8]) -> Option<String> {
    let key = std::str::from_utf8(key).ok()?;
    if key.len() > prefix.len() + MAX_KEY {
        return None;
    }
    // It is not a prefix, but the only key.
    if !prefix.ends_with('/') {
        let (_, name) = key.rsplit_once('/')?;
        return (key == prefix).then(|| name.to_owned());
    }
    key.strip_prefix(prefix).map(str::to_owned)
}

/// The first key after everything that starts with `prefix`; empty, as etcd wants it, if that is the only key.
fn range_end(prefix: &str) -> Vec<u8> {
    // After the slash comes a zero.
    let below = prefix.strip_suffix('/').map(|below| format!("{below}0"));
    below.unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::connector::EtcdTls;
    use crate::config::EtcdConfig;

    #[test]
    fn requested_progress_counts_from_versions_that_order_it() {
        for (version, ordered) in [
            ("3.4.23", false),
            ("3.4.30", false),
            ("3.4.31", true),
            ("3.5.1", false),
            ("3.5.12", false),
            ("3.5.13", true),
            ("3.5.21+k3s1", true),
            ("3.6.0-rc.1", true),
            ("4.0.0", true),
            ("3.3.27", false),
            ("", false),
            ("unknown", false),
        ] {
            assert_eq!(orders_requested_progress(version), ordered, "{version}");
        }
    }

    /// What is asked for, page after page, of values of these sizes at an etcd that fails a page beyond the limit.
    fn limits(values: &[usize]) -> Vec<i64> {
        let (mut asked, mut limit, mut left) = (Vec::new(), FIRST_VALUES, values);
        while !left.is_empty() {
            asked.push(limit);
            let count = usize::try_from(limit).unwrap().min(left.len());
            let (page, rest) = left.split_at(count);
            let bytes: usize = page.iter().sum();
            if count > 1 && bytes > MAX_PAGE {
                limit /= 2;
            } else {
                limit = next_limit(limit, bytes);
                left = rest;
            }
        }
        asked
    }

    #[test]
    fn pages_are_as_large_as_the_values_allow() {
        let small = limits(&[500; 10_000]);
        assert!(small.len() < 50 && small[..3] == [10, 20, 40], "{small:?}");
        let definitions = limits(&[15 << 10; 10_000]);
        assert!(definitions.len() < 50, "{definitions:?}");
        // None fails.
        let large = limits(&[100 << 10; 1000]);
        assert!(large.is_sorted() && large.ends_with(&[80; 9]), "{large:?}");
        assert_eq!(limits(&[1 << 20; 30]), [10, 10, 10]);
        // Larger than etcd's default limit.
        assert_eq!(limits(&[10 << 20; 4]), [10, 5, 2, 1, 1, 1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn after_two_seconds_without_an_answer_the_next_member_is_asked() {
        let members = [(); 2].map(|()| {
            let member = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            member.set_nonblocking(true).unwrap();
            member
        });
        let config = EtcdConfig {
            endpoints: members
                .iter()
                .map(|member| format!("http://{}", member.local_addr().unwrap()))
                .collect(),
            ca_file: None,
            client: None,
            prefix: "/registry".to_owned(),
            other_resources: Vec::new(),
        };
        let connector = Connector::new(&config, EtcdTls::default());
        let prefix = "/registry/leases/".to_owned();
        let mut source = EtcdSource::new(connector, prefix, Duration::from_secs(15));
        let begun = tokio::time::Instant::now();
        let listed = source.list(None).await;
        assert!(matches!(listed, Err(SourceError::Timeout)), "{listed:?}");
        // For 10, 5, 2 values and 1.
        assert_eq!(begun.elapsed().as_secs(), 4 * REQUEST_TIMEOUT.as_secs());
        for member in members {
            assert!(member.accept().is_ok() && member.accept().is_ok());
        }
    }

    #[test]
    fn a_single_key_is_no_prefix_of_others() {
        let key = "/registry/services/endpoints/default/kubernetes";
        assert_eq!(relative(key, key.as_bytes()).as_deref(), Some("kubernetes"));
        let other = format!("{key}-foo");
        assert_eq!(relative(key, other.as_bytes()), None);
        let below = relative(
            "/registry/masterleases/",
            b"/registry/masterleases/10.0.0.1",
        );
        assert_eq!(below.as_deref(), Some("10.0.0.1"));
    }

    #[test]
    fn the_range_ends_behind_the_prefix() {
        assert_eq!(range_end("/registry/leases/"), b"/registry/leases0");
    }
}
