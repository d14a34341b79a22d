//! The client of one watch. It reads the bytes that it gets by itself, and compares them with what it is to get.

use bytes::Bytes;
use serde_json::Value;

use crate::watches::frames::ObjectType;

/// A frame as kube-apiserver writes it.
pub(super) fn event(revision: i64, name: &str) -> Bytes {
    format!(
        r#"{{"type":"MODIFIED","object":{{"kind":"Thing","apiVersion":"apps/v1","metadata":{{"namespace":"n","name":"{name}","resourceVersion":"{revision}"}}}}}}{}"#,
        '\n'
    )
    .into()
}

pub(super) fn thing() -> ObjectType {
    ObjectType {
        api_version: "apps/v1".to_owned(),
        kind: "Thing".to_owned(),
    }
}

#[derive(Clone, Hash)]
pub(super) struct Client {
    /// The revision that it would come back with.
    revision: i64,
    /// How many changes it has got.
    got: usize,
    /// The beginning of a frame.
    begun: Vec<u8>,
}

impl Client {
    pub(super) fn new(start: i64) -> Self {
        Self {
            revision: start,
            got: 0,
            begun: Vec::new(),
        }
    }

    /// It reads `bytes`. `changes`: all that it is to get, in order; `newest`: the revision up to which these are.
    pub(super) fn reads(
        &mut self,
        bytes: &[u8],
        changes: &[(i64, &str)],
        newest: i64,
    ) -> Result<(), String> {
        self.begun.extend_from_slice(bytes);
        while let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
            let frame: Vec<u8> = self.begun.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&frame)
                .map_err(|_| format!("no event: {}", frame.escape_ascii()))?;
            let metadata = &event["object"]["metadata"];
            let revision = metadata["resourceVersion"].as_str().unwrap_or_default();
            let revision = revision.parse().map_err(|_| format!("{event}"))?;
            if revision < self.revision {
                return Err(format!("back from {} to {revision}", self.revision));
            }
            self.revision = revision;
            if event["type"] == "BOOKMARK" {
                self.has_all_through(revision, changes)?;
                if revision > newest {
                    return Err(format!("a bookmark at {revision}, but etcd is at {newest}"));
                }
                continue;
            }
            let told = (revision, metadata["name"].as_str().unwrap_or_default());
            match changes.get(self.got) {
                Some(wanted) if *wanted == told => self.got += 1,
                wanted => return Err(format!("got {told:?}, wanted {wanted:?}")),
            }
        }
        Ok(())
    }

    fn has_all_through(&self, revision: i64, changes: &[(i64, &str)]) -> Result<(), String> {
        match changes.get(self.got) {
            Some(missed) if missed.0 <= revision => Err(format!(
                "at {revision} without {missed:?}, which it would never get"
            )),
            _ => Ok(()),
        }
    }

    /// Its watch has ended cleanly: it comes back with the revision that it has.
    pub(super) fn comes_back(&self, changes: &[(i64, &str)]) -> Result<(), String> {
        if !self.begun.is_empty() {
            return Err("a clean end within a frame".to_owned());
        }
        self.has_all_through(self.revision, changes)
    }

    /// The revision of the next change that it is to get.
    pub(super) fn next(&self, changes: &[(i64, &str)]) -> Option<i64> {
        changes.get(self.got).map(|(revision, _)| *revision)
    }

    /// It has got some of the objects of its last revision, and not all.
    pub(super) fn is_within_revision(&self, changes: &[(i64, &str)]) -> bool {
        self.got > 0 && self.next(changes) == Some(self.revision)
    }
}
