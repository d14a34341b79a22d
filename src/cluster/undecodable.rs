//! Values in etcd that could not be decoded, for the report to operators.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde_json::{Value, json};

use super::keys::Topic;
use super::prefix::{Decoded, PrefixState};
use super::source::EtcdItem;
use crate::log_throttle::LogRateLimit;

/// Limit of listed values; all are counted.
const NAMED: usize = 100;

/// Values that cannot be decoded now.
#[derive(Debug, Default)]
pub struct Undecodables {
    named: BTreeMap<(Topic, String), (i64, String)>,
    logged: BTreeMap<Topic, LogRateLimit>,
    /// All so far.
    pub count: u64,
}

impl Undecodables {
    /// Decodes a value of a topic.
    pub fn read<T, E: Display>(
        &mut self,
        topic: Topic,
        item: &EtcdItem,
        decode: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Decoded<T> {
        match decode(&item.value) {
            Ok(value) => {
                self.remove(topic, &item.key);
                Some(Some(value))
            }
            Err(error) => {
                self.add(topic, &item.key, item.mod_revision, &error);
                None
            }
        }
    }

    /// The value of `key` that `revision` wrote is not taken in. Logged once a minute for each topic.
    pub fn add(&mut self, topic: Topic, key: &str, revision: i64, error: &dyn Display) {
        let name = (topic, key.to_owned());
        let known = self.named.get(&name);
        if known.is_some_and(|(before, _)| *before == revision) {
            return;
        }
        self.count += 1;
        let error = error.to_string();
        if let Some(left_out) = self.logged.entry(topic).or_default().admit() {
            let topic = topic.name();
            tracing::warn!(
                topic,
                key,
                error,
                left_out,
                "value cannot be decoded, keeping what was known before"
            );
        }
        if known.is_some() || self.named.len() < NAMED {
            self.named.insert(name, (revision, error));
        }
    }

    /// Of the keys of a topic too many are there.
    pub fn note_left_out<T>(&mut self, topic: Topic, keys: &PrefixState<T>) {
        if let Some((key, revision)) = &keys.left_out {
            let why = format!("left out, {} that were created before are kept", keys.most);
            self.add(topic, key, *revision, &why);
        }
    }

    /// `key` is gone, or can be decoded now.
    pub fn remove(&mut self, topic: Topic, key: &str) {
        if !self.named.is_empty() {
            self.named.remove(&(topic, key.to_owned()));
        }
    }

    /// A new list of `topic` begins.
    pub fn restart(&mut self, topic: Topic) {
        self.named.retain(|(of, _), _| *of != topic);
    }

    /// For the report.
    pub fn list(&self) -> Vec<Value> {
        let named = self.named.iter();
        named
            .map(|((topic, key), (revision, error))| {
                json!({"topic": topic.name(), "key": key, "revision": revision, "error": error})
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_decoded_is_named_until_it_can_or_is_gone() {
        let mut undecodables = Undecodables::default();
        for (topic, revision, error, count) in [
            (Topic::Live, 1, "garbage", 1),
            (Topic::Live, 1, "garbage", 1),
            (Topic::Live, 2, "garbage", 2),
            (Topic::Servers, 3, "encrypted", 3),
        ] {
            undecodables.add(topic, "a", revision, &error);
            assert_eq!(undecodables.count, count);
        }
        undecodables.remove(Topic::Live, "a");
        let named: Vec<_> = undecodables.list();
        assert_eq!(named.len(), 1);
        assert_eq!(named[0]["topic"], "servers");
        undecodables.restart(Topic::Servers);
        assert!(undecodables.list().is_empty());
    }

    #[test]
    fn only_so_many_are_named() {
        let mut undecodables = Undecodables::default();
        for index in 0..2 * NAMED {
            undecodables.add(Topic::Live, &index.to_string(), 1, &"garbage");
        }
        assert_eq!(undecodables.list().len(), NAMED);
        assert_eq!(undecodables.count, 2 * NAMED as u64);
    }
}
