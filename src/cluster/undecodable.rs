//! Values in etcd that could not be decoded, for the report to operators.

use std::collections::BTreeMap;

use serde::Serialize;

use super::keys::Topic;
use crate::log_throttle::LogRateLimit;

/// Limit of listed values; all are counted.
const NAMED: usize = 100;

/// Longest name that people are shown, in characters.
const SHOWN: usize = 100;

/// Values that cannot be decoded now.
#[derive(Debug, Default)]
pub struct Undecodables {
    named: BTreeMap<(Topic, String), (i64, String)>,
    logged: BTreeMap<Topic, LogRateLimit>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UndecodableValue {
    topic: &'static str,
    key: String,
    revision: i64,
    error: String,
}

impl Undecodables {
    /// The value of `key` that `revision` wrote cannot be decoded. Returns whether that is new. Logged once a minute for
    /// each topic.
    pub fn add(&mut self, topic: Topic, key: &str, revision: i64, error: String) -> bool {
        let place = (topic, key.to_owned());
        let known = self.named.get(&place);
        if known.is_some_and(|(before, _)| *before == revision) {
            return false;
        }
        if let Some(left_out) = self.logged.entry(topic).or_default().admit() {
            let (topic, key) = (topic.name(), shown(key));
            tracing::warn!(
                topic,
                key,
                error,
                left_out,
                "value cannot be decoded, keeping what was known before"
            );
        }
        if known.is_some() || self.named.len() < NAMED {
            self.named.insert(place, (revision, error));
        }
        true
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

    pub fn list(&self) -> Vec<UndecodableValue> {
        let named = self.named.iter();
        named
            .map(|((topic, key), (revision, error))| UndecodableValue {
                topic: topic.name(),
                key: shown(key),
                revision: *revision,
                error: error.clone(),
            })
            .collect()
    }
}

/// API users choose names.
fn shown(name: &str) -> String {
    match name.char_indices().nth(SHOWN) {
        None => name.to_owned(),
        Some((end, _)) => format!("{}…", &name[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_decoded_is_named_until_it_can_or_is_gone() {
        let mut undecodables = Undecodables::default();
        assert!(undecodables.add(Topic::Live, "a", 1, "garbage".into()));
        assert!(!undecodables.add(Topic::Live, "a", 1, "garbage".into()));
        assert!(undecodables.add(Topic::Live, "a", 2, "garbage".into()));
        assert!(undecodables.add(Topic::Servers, "a", 3, "encrypted".into()));
        undecodables.remove(Topic::Live, "a");
        let named: Vec<_> = undecodables.list().into_iter().map(|n| n.topic).collect();
        assert_eq!(named, ["servers"]);
        undecodables.restart(Topic::Servers);
        assert!(undecodables.list().is_empty());
    }

    #[test]
    fn only_so_many_are_named() {
        let mut undecodables = Undecodables::default();
        for index in 0..2 * NAMED {
            assert!(undecodables.add(Topic::Live, &index.to_string(), 1, "garbage".into()));
        }
        assert_eq!(undecodables.list().len(), NAMED);
    }
}
