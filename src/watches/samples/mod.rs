//! A few objects that the local apiserver delivered in lists, by resource (KEP-1904).
//!
//! A watch of a quiet resource delivers no object to look up in etcd, but its client has listed before. So a few objects of
//! a list of each resource are kept ([`Sample`]). Each has a key and a revision that etcd must have, and all have the type
//! that a bookmark needs.
//!
//! Invariants: a sample belongs to one process of the apiserver, identified by its epoch, and counts only for watches of that
//! process. Lock-free. Written by list requests from time to time ([`sampler::ListSampler`]); read when watches end.

mod json;
mod list;
mod protobuf;
pub mod sampler;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use hashbrown::HashMap;

use super::follower::{Anchor, ObjectType};
use crate::kube::gvr::{Gvr, GvrRef};

/// Limit of resources.
const RESOURCES: usize = 1024;
/// Pause after a list that gave no sample.
const AGAIN: Duration = Duration::from_secs(1);
/// Pause after a sample was taken: objects change, and etcd compacts old revisions.
const FRESH: Duration = Duration::from_secs(60);

/// The type and some objects of a resource, from one list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    pub type_meta: ObjectType,
    /// The objects with the oldest revisions.
    pub anchors: Vec<Anchor>,
}

/// The samples of all resources.
#[derive(Debug)]
pub struct Samples {
    since: Instant,
    slots: ArcSwap<HashMap<Gvr, Arc<SampleSlot>>>,
}

impl Default for Samples {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            slots: ArcSwap::default(),
        }
    }
}

impl Samples {
    /// The slot for the sample of `resource`; `None` if there are too many.
    pub fn slot(&self, resource: GvrRef<'_>) -> Option<Arc<SampleSlot>> {
        {
            let slots = self.slots.load();
            match slots.get(&resource) {
                None if slots.len() < RESOURCES => {}
                known => return known.cloned(),
            }
        }
        self.slots.rcu(|slots| {
            let mut slots = HashMap::clone(slots);
            slots.entry(resource.owned()).or_default();
            slots
        });
        self.slots.load().get(&resource).cloned()
    }

    /// The right to sample a list of `resource` that is answered at `now`, if one is due. No other list is sampled for a
    /// while.
    fn claim(&self, resource: GvrRef<'_>, epoch: u64, now: Instant) -> Option<Claim> {
        let at = now.saturating_duration_since(self.since);
        let is_due = self
            .slots
            .load()
            .get(&resource)
            .is_none_or(|slot| slot.is_due(epoch, at));
        let slot = is_due.then(|| self.slot(resource))??;
        let claimed = slot.claim(epoch, at);
        claimed.then_some(Claim { slot, epoch, at })
    }
}

/// Holds one resource's sample.
#[derive(Debug, Default)]
pub struct SampleSlot {
    /// High 32 bits: the epoch of the last sampled list. Low 32 bits: when the next may be sampled, in seconds after
    /// [`Samples::since`].
    next: AtomicU64,
    kept: ArcSwapOption<(u64, Sample)>,
}

const SECONDS: u64 = u32::MAX as u64;

fn packed(epoch: u64, at: Duration) -> u64 {
    epoch << 32 | at.as_secs().min(SECONDS)
}

impl SampleSlot {
    /// The sample, if it was taken from the process of this epoch.
    pub fn sample(&self, epoch: u64) -> Option<Sample> {
        let kept = self.kept.load();
        let (of, sample) = kept.as_deref()?;
        (*of == epoch).then(|| sample.clone())
    }

    fn is_due(&self, epoch: u64, at: Duration) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        next >> 32 != epoch & SECONDS || next & SECONDS <= at.as_secs()
    }

    fn claim(&self, epoch: u64, at: Duration) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        let after = packed(epoch, at + AGAIN);
        let exchange = |next| {
            self.next
                .compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed)
        };
        self.is_due(epoch, at) && exchange(next).is_ok()
    }
}

/// The right to sample one list.
#[derive(Debug)]
struct Claim {
    slot: Arc<SampleSlot>,
    epoch: u64,
    at: Duration,
}

impl Claim {
    fn found(self, sample: Sample) {
        let Self { slot, epoch, at } = self;
        slot.kept.store(Some(Arc::new((epoch, sample))));
        slot.next
            .store(packed(epoch, at + FRESH), Ordering::Relaxed);
    }

    /// The list was empty: the next list, perhaps of another namespace, may be sampled at once.
    fn empty(self) {
        let next = packed(self.epoch, self.at);
        self.slot.next.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
