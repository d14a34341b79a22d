//! etcd, as `forget` and `install` ask it: endpoints are tried one after the other, all of them within [`PATIENCE`].

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use etcd_client::Client;
use tokio::time::timeout;

use super::PATIENCE;
use super::text::plain;
use crate::cluster::connector::{self, Connector};
use crate::cluster::etcd;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::record::Record;
use crate::cluster::source::{EtcdItem, SourceError};
use crate::config::Config;
use crate::tls::files::FileSnapshot;

pub(super) struct EtcdAccess {
    endpoints: Vec<String>,
    connector: Connector,
    pub(super) keys: EtcdKeys,
}

impl EtcdAccess {
    /// Connects with the first request.
    pub(super) fn new(config: &Config) -> Result<Self, String> {
        let etcd = &config.etcd;
        let files = connector::files(etcd);
        let tls = connector::tls_options(etcd, &FileSnapshot::read(&files));
        let tls = tls.map_err(|error| format!("etcd's certificate files: {error}"))?;
        let tls = Arc::new(ArcSwapOption::from_pointee(tls));
        Ok(Self {
            endpoints: etcd.endpoints.clone(),
            connector: Connector::new(etcd, tls),
            keys: EtcdKeys::new(&etcd.prefix, &config.identity.lease_namespaces),
        })
    }

    /// The error is one line.
    pub(super) async fn ask<T>(
        &self,
        request: impl AsyncFn(Client) -> Result<T, SourceError>,
    ) -> Result<T, String> {
        let count = u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX);
        let share = PATIENCE / count.max(1);
        let mut connector = self.connector.clone().limited(share);
        let mut failures = String::new();
        for endpoint in &self.endpoints {
            let answer = timeout(share, async { request(connector.connect().await?).await }).await;
            match answer.unwrap_or(Err(SourceError::Timeout)) {
                Ok(answer) => return Ok(answer),
                Err(error) => failures += &format!("; {endpoint}: {}", plain(&reason(&error))),
            }
        }
        Err(format!("etcd cannot be asked{failures}"))
    }

    /// What is below the prefix of each topic, one read after the other.
    pub(super) async fn list<const N: usize>(
        &self,
        topics: [Topic; N],
    ) -> Result<[Vec<EtcdItem>; N], String> {
        self.ask(async |client: Client| {
            let mut lists = [const { Vec::new() }; N];
            for (list, topic) in lists.iter_mut().zip(topics) {
                let below = self.keys.of(topic);
                *list = etcd::list(client.kv_client(), &below, false).await?.items;
            }
            Ok(lists)
        })
        .await
    }
}

/// Without what cannot be decoded: the proxy names it on its status page.
pub(super) fn decoded<T, E>(
    items: &[EtcdItem],
    decode: impl Fn(&[u8]) -> Result<T, E>,
) -> impl Iterator<Item = (String, T)> {
    let decoded = move |item: &EtcdItem| Some((item.key.clone(), decode(&item.value).ok()?));
    items.iter().filter_map(decoded)
}

/// What of this record's resources no other one lists, by group version.
pub(super) fn only_in<'r>(
    record: &Record,
    others: impl Iterator<Item = &'r Record> + Clone,
) -> Vec<(String, usize)> {
    let only = record.resources.iter().map(|(group_version, listed)| {
        let there = others
            .clone()
            .filter_map(|it| it.resources.get(group_version));
        let there: HashSet<_> = there.flatten().collect();
        let left = listed.iter().filter(|it| !there.contains(it));
        (group_version.clone(), left.count())
    });
    only.filter(|(_, count)| *count > 0).collect()
}

/// The error, with a hint if the client certificate may be the cause.
fn reason(error: &SourceError) -> String {
    let hint = match hung_up(error) {
        true => ": does it take the client certificate, etcd.certFile?",
        false => "",
    };
    error.said() + hint
}

/// Whether etcd ended the connection. It says nothing of a client certificate: with TLS 1.3 the client considers the
/// connection established before the server rejects its certificate.
pub(super) fn hung_up(error: &SourceError) -> bool {
    let message = error.said().to_ascii_lowercase();
    let mut ways = ["fatal alert", "closed", "reset", "broken pipe"].iter();
    ways.any(|how| message.contains(how))
}
