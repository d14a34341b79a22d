//! Which faults are injected, where, and for how long: all of it from the seed. Pure.
//!
//! A plan has no end. Of every round of it each kind of fault is a part, in random order. A step is one fault, or two of
//! different kinds at the same moment at different nodes; most members of etcd are always left alone, and each group is always switched on
//! at some server.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::random::Random;

mod kind;

use self::kind::touches_etcd;
pub use self::kind::{Fault, Files, Group, Kind, Link, Part};

pub const NODES: usize = 3;
/// The process of this proxy is there from the beginning to the end: what grows in it is seen.
pub const KEPT: usize = 0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Before it, with nothing broken.
    pub pause: Duration,
    /// Since the beginning.
    pub not_before: Duration,
    pub faults: Vec<Fault>,
}

pub struct Plan {
    random: Random,
    round: VecDeque<Kind>,
    without: [BTreeSet<Group>; NODES],
    /// The minor versions that the apiservers are upgraded and set back to.
    minors: Vec<u32>,
    /// Of each apiserver.
    now: [u32; NODES],
}

/// What is seen shortly after one would else be the next one's.
const BETWEEN_UPGRADES: Duration = Duration::from_secs(12);
/// So that it takes as long whatever is in front.
const EVERY: Duration = Duration::from_secs(55);
const PARTS: [Part; 4] = [Part::Apiserver, Part::Proxy, Part::Both, Part::Etcd];
const LINKS: [Link; 4] = [Link::Clients, Link::Peers, Link::Apiserver, Link::Etcd];
/// In a round, before it is known from where to where.
const UPGRADED: Kind = Kind::Upgraded([0, 0]);
const GROUPS: [Group; 2] = [Group::Autoscaling, Group::Batch];

/// What each apiserver does not serve at first.
pub fn at_first() -> [BTreeSet<Group>; NODES] {
    [
        BTreeSet::from([Group::Autoscaling]),
        BTreeSet::from([Group::Batch]),
        BTreeSet::new(),
    ]
}

/// Instead of faults: one apiserver after the other goes through these minor versions, and back.
pub fn upgrades(minors: &[u32]) -> Vec<Step> {
    let back = minors.iter().rev().skip(1);
    let path: Vec<_> = minors.iter().chain(back).copied().collect();
    let steps = path.windows(2).enumerate().flat_map(|(round, versions)| {
        (0..NODES).map(move |node| Step {
            pause: BETWEEN_UPGRADES,
            not_before: EVERY * u32::try_from(NODES * round + node).unwrap_or(u32::MAX),
            faults: vec![Fault {
                kind: Kind::Upgraded([versions[0], versions[1]]),
                node,
                lasts: Duration::ZERO,
                without: BTreeSet::new(),
            }],
        })
    });
    steps.collect()
}

impl Plan {
    /// `minors`: if there are several versions, all of them; `now`: what each apiserver has at first.
    pub fn new(seed: u64, minors: &[u32], now: [u32; NODES]) -> Self {
        Self {
            random: Random::new(seed),
            round: VecDeque::new(),
            without: at_first(),
            minors: minors.to_vec(),
            now,
        }
    }

    fn kind(&mut self) -> Kind {
        if self.round.is_empty() {
            let mut kinds = all_kinds();
            if self.minors.len() > 1 {
                kinds.push(UPGRADED);
            }
            self.random.shuffle(&mut kinds);
            self.round.extend(kinds);
        }
        self.round.pop_front().unwrap_or(Kind::Defined)
    }

    fn fault(&mut self, kind: Kind, not_at: Option<usize>) -> Fault {
        let may_be = |node: &usize| {
            Some(*node) != not_at
                && !(*node == KEPT && kind.ends_proxy())
                && (kind != UPGRADED || self.is_needless(*node))
        };
        let nodes: Vec<_> = (0..NODES).filter(may_be).collect();
        // Or else one that is not upgraded.
        let Some(node) = nodes.first().map(|_| self.random.one(&nodes)) else {
            return self.fault(Kind::Stepped(90), not_at);
        };
        let kind = match kind {
            UPGRADED => self.upgrade(node),
            kind => kind,
        };
        if kind == Kind::Switched {
            self.switch(node);
        }
        let lasts = match kind {
            Kind::Rotated(_) | Kind::Defined | Kind::Replaced => Duration::ZERO,
            Kind::Killed(_) | Kind::Terminated(_) | Kind::Switched | Kind::Upgraded(_) => {
                self.random.millis(200..4_000)
            }
            // While the others know what the apiserver serves.
            Kind::Uninstalled => self.random.millis(20_000..40_000),
            _ => self.random.millis(500..10_000),
        };
        Fault {
            kind,
            node,
            lasts,
            without: self.without[node].clone(),
        }
    }

    /// To another version, or back.
    fn upgrade(&mut self, node: usize) -> Kind {
        let from = self.now[node];
        let others: Vec<_> = self
            .minors
            .iter()
            .copied()
            .filter(|it| *it != from)
            .collect();
        self.now[node] = self.random.one(&others);
        Kind::Upgraded([from, self.now[node]])
    }

    /// Another set for this node; each group stays switched on at another one.
    fn switch(&mut self, node: usize) {
        let group = self.random.one(&GROUPS);
        let elsewhere = (0..NODES).any(|other| other != node && self.serves(other, group));
        if !self.without[node].remove(&group) && elsewhere {
            self.without[node].insert(group);
        }
    }

    /// Whether others serve all that it serves, so that nobody need notice that it stops.
    fn is_needless(&self, node: usize) -> bool {
        let elsewhere = |group| (0..NODES).any(|it| it != node && self.serves(it, group));
        GROUPS
            .into_iter()
            .all(|group| !self.serves(node, group) || elsewhere(group))
    }

    fn serves(&self, node: usize, group: Group) -> bool {
        !self.without[node].contains(&group)
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let kind = self.kind();
        // What nobody may notice comes when nothing else is an excuse any more.
        let pause = match kind.excuses_requests() {
            true => self.random.millis(500..4_000),
            false => self.random.millis(13_000..16_000),
        };
        let first = self.fault(kind, None);
        let mut faults = vec![first];
        if self.random.below(3) == 0 {
            let second = self.kind();
            // Two definitions of one step would have the same name.
            let is_fit = second != kind
                && !(touches_etcd(kind) && touches_etcd(second))
                && kind.excuses_requests() == second.excuses_requests();
            if !is_fit {
                self.round.push_back(second);
            } else {
                let node = faults[0].node;
                faults.push(self.fault(second, Some(node)));
            }
        }
        Some(Step {
            pause,
            not_before: Duration::ZERO,
            faults,
        })
    }
}

fn all_kinds() -> Vec<Kind> {
    let parts = PARTS.into_iter().flat_map(|part| {
        [
            Kind::Killed(part),
            Kind::Terminated(part),
            Kind::Frozen(part),
        ]
    });
    let links = LINKS
        .into_iter()
        .flat_map(|link| [Kind::Cut(link), Kind::Delayed(link), Kind::Silent(link)]);
    let files = [Files::Serving, Files::ProxyClient].map(Kind::Rotated);
    let clocks = [Kind::Stepped(90), Kind::Stepped(-30)];
    let rest = [
        Kind::Unreachable,
        Kind::Replaced,
        Kind::Uninstalled,
        Kind::Lagging,
        Kind::Switched,
        Kind::Switched,
        Kind::Defined,
    ];
    let all = parts.chain(links).chain(files).chain(clocks);
    all.chain(rest).collect()
}

#[cfg(test)]
mod tests;
