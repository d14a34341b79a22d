//! Objects that the apiserver beside us delivered in lists, by resource (KEP-1904).
//!
//! A watch of a quiet resource delivers nothing that etcd could be recognised by, but who watches has listed before. So
//! of each resource a few objects of a list are kept ([`Sample`]): each has a key and a revision that etcd must have, and
//! all have the type that a bookmark needs.
//!
//! Invariants: a sample is of one process of the apiserver, named by its epoch, and good for watches of that process
//! alone. Nobody waits for anybody. Written by requests that list, now and then ([`look::Look`]); read when watches end.

mod json;
pub mod look;
mod protobuf;
mod read;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use hashbrown::HashMap;

use super::follower::{TypeMeta, Witness};
use crate::routing::table::{Gvr, GvrRef};

/// Resources at most.
const RESOURCES: usize = 1024;
/// After a list that is looked at; the next one is, if that showed nothing.
const AGAIN: Duration = Duration::from_secs(1);
/// After a sample was found: objects change, and etcd forgets.
const FRESH: Duration = Duration::from_secs(60);

/// What a list showed of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The type of its objects.
    pub type_meta: TypeMeta,
    /// Some of its objects, those that have not changed for the longest time.
    pub witnesses: Vec<Witness>,
}

/// The samples of all resources.
#[derive(Debug)]
pub struct Samples {
    since: Instant,
    slots: ArcSwap<HashMap<Gvr, Arc<Slot>>>,
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
    /// Where the sample of `resource` is kept; none if there are too many.
    pub fn slot(&self, resource: GvrRef<'_>) -> Option<Arc<Slot>> {
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

    /// Whether a list of `resource` that is answered at `now` is to be looked at; if so, no other is for a while.
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

/// The place of one resource's sample.
#[derive(Debug, Default)]
pub struct Slot {
    /// The epoch in which a list was looked at last, and since when, in seconds, another may be: 32 bits each.
    next: AtomicU64,
    kept: ArcSwapOption<(u64, Sample)>,
}

const SECONDS: u64 = u32::MAX as u64;

fn packed(epoch: u64, at: Duration) -> u64 {
    epoch << 32 | at.as_secs().min(SECONDS)
}

impl Slot {
    /// The sample, if it is of the process of this epoch.
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

/// The right to look at one list.
#[derive(Debug)]
struct Claim {
    slot: Arc<Slot>,
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

    /// The list was empty, which was soon seen: the next may be another namespace's.
    fn empty(self) {
        let next = packed(self.epoch, self.at);
        self.slot.next.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
