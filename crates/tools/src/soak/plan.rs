//! Which faults are injected, where, and for how long: all of it from the seed. Pure.
//!
//! A plan has no end. Of every round of it each kind of fault is a part, in random order. A step is one fault, or two of
//! different kinds at the same moment at different nodes; most members of etcd are always left alone, and each group is always switched on
//! at some server.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use crate::random::Random;
use crate::table::Sort;

pub const NODES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Apiserver,
    Proxy,
    Etcd,
}

/// Connections to or from the proxy of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    Clients,
    Peers,
    Apiserver,
    Etcd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Files {
    Serving,
    ProxyClient,
}

/// What an apiserver can be told not to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    Autoscaling,
    Batch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Killed(Part),
    Terminated(Part),
    Frozen(Part),
    Cut(Link),
    Delayed(Link),
    Silent(Link),
    /// A member of etcd gets late what its peers say.
    Lagging,
    Rotated(Files),
    /// The proxy's clock, by so many minutes.
    Stepped(i64),
    Switched,
    Defined,
    /// The apiserver, from one minor version to another.
    Upgraded([u32; 2]),
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: Kind,
    /// Whose apiserver, proxy, member or link; or through whose proxy a definition is written.
    pub node: usize,
    /// Until it is mended. Starting again takes its own time.
    pub lasts: Duration,
    /// What the apiserver serves from then on, if it is switched.
    pub without: BTreeSet<Group>,
}

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
    steps: usize,
    round: VecDeque<Kind>,
    without: [BTreeSet<Group>; NODES],
}

/// Before every so many steps everything is left alone for longer, until no trouble is explained any more.
const LONG_PAUSE: usize = 4;
/// What is seen shortly after one would else be the next one's.
const BETWEEN_UPGRADES: Duration = Duration::from_secs(12);
/// So that it takes as long whatever is in front.
const EVERY: Duration = Duration::from_secs(55);
const PARTS: [Part; 3] = [Part::Apiserver, Part::Proxy, Part::Etcd];
const LINKS: [Link; 4] = [Link::Clients, Link::Peers, Link::Apiserver, Link::Etcd];
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
    pub fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            steps: 0,
            round: VecDeque::new(),
            without: at_first(),
        }
    }

    fn kind(&mut self) -> Kind {
        if self.round.is_empty() {
            let mut kinds = all_kinds();
            self.random.shuffle(&mut kinds);
            self.round.extend(kinds);
        }
        self.round.pop_front().unwrap_or(Kind::Defined)
    }

    fn fault(&mut self, kind: Kind, not_at: Option<usize>) -> Fault {
        let nodes: Vec<_> = (0..NODES).filter(|node| Some(*node) != not_at).collect();
        let node = self.random.one(&nodes);
        if kind == Kind::Switched {
            self.switch(node);
        }
        let lasts = match kind {
            Kind::Rotated(_) | Kind::Defined => Duration::ZERO,
            Kind::Killed(_) | Kind::Terminated(_) | Kind::Switched => {
                self.random.millis(200..4_000)
            }
            _ => self.random.millis(500..10_000),
        };
        Fault {
            kind,
            node,
            lasts,
            without: self.without[node].clone(),
        }
    }

    /// Another set for this node; each group stays switched on at another one.
    fn switch(&mut self, node: usize) {
        let group = self.random.one(&GROUPS);
        let elsewhere = (0..NODES).any(|other| other != node && self.serves(other, group));
        if !self.without[node].remove(&group) && elsewhere {
            self.without[node].insert(group);
        }
    }

    fn serves(&self, node: usize, group: Group) -> bool {
        !self.without[node].contains(&group)
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        self.steps += 1;
        let pause = match self.steps.is_multiple_of(LONG_PAUSE) {
            true => self.random.millis(13_000..16_000),
            false => self.random.millis(500..4_000),
        };
        let kind = self.kind();
        let first = self.fault(kind, None);
        let mut faults = vec![first];
        if self.random.below(3) == 0 {
            let second = self.kind();
            // Two definitions of one step would have the same name.
            if second == kind || touches_etcd(kind) && touches_etcd(second) {
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

fn touches_etcd(kind: Kind) -> bool {
    use Kind::{Frozen, Killed, Terminated};
    matches!(kind, Killed(part) | Terminated(part) | Frozen(part) if part == Part::Etcd)
        || kind == Kind::Lagging
}

impl Kind {
    /// Whose trouble it explains. Of the rest nobody may notice anything.
    pub fn explains(self) -> &'static [Sort] {
        match self {
            // No older apiserver goes on with a watch of a newer one, and none with another one's upgraded stream.
            Self::Upgraded([from, to]) if from > to => &[Sort::Watch, Sort::Stream],
            Self::Upgraded(_) => &[Sort::Stream],
            Self::Delayed(Link::Clients | Link::Peers | Link::Apiserver)
            | Self::Lagging
            | Self::Rotated(Files::Serving)
            | Self::Stepped(_)
            | Self::Defined => &[],
            _ => &[Sort::Request, Sort::Watch, Sort::Stream],
        }
    }

    /// Whether reads may wait for its end: what no proxy can shorten. The client's own link or the proxy that it is
    /// connected to does nothing, or the apiserver waits for its member of etcd.
    pub fn holds_reads(self) -> bool {
        touches_etcd(self)
            || matches!(
                self,
                Self::Frozen(Part::Proxy) | Self::Silent(Link::Clients)
            )
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
    let rest = [Kind::Lagging, Kind::Switched, Kind::Switched, Kind::Defined];
    let all = parts.chain(links).chain(files).chain(clocks);
    all.chain(rest).collect()
}

impl Group {
    /// For `--runtime-config`, so that it is not served.
    pub fn switched_off(self) -> &'static [&'static str] {
        match self {
            Self::Autoscaling => &[
                "autoscaling/v1=false",
                "autoscaling/v2beta1=false",
                "autoscaling/v2beta2=false",
            ],
            Self::Batch => &["batch/v1=false", "batch/v1beta1=false"],
        }
    }
}

impl Display for Part {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Apiserver => "apiserver",
            Self::Proxy => "proxy",
            Self::Etcd => "etcd member",
        })
    }
}

impl Display for Link {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clients => "clients to proxy",
            Self::Peers => "peers to proxy",
            Self::Apiserver => "proxy to apiserver",
            Self::Etcd => "proxy to etcd",
        })
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed(part) => write!(f, "{part}: SIGKILL"),
            Self::Terminated(part) => write!(f, "{part}: SIGTERM"),
            Self::Frozen(part) => write!(f, "{part}: SIGSTOP"),
            Self::Cut(link) => write!(f, "{link}: cut"),
            Self::Delayed(link) => write!(f, "{link}: delayed"),
            Self::Silent(link) => write!(f, "{link}: silent"),
            Self::Lagging => f.write_str("etcd member: its peers are late"),
            Self::Rotated(Files::Serving) => f.write_str("serving certificate: new"),
            Self::Rotated(Files::ProxyClient) => f.write_str("proxy client certificate: new"),
            Self::Stepped(minutes) => write!(f, "proxy's clock: {minutes:+} minutes"),
            Self::Switched => f.write_str("apiserver: other groups"),
            Self::Defined => f.write_str("CRD: created, deleted"),
            Self::Upgraded([from, to]) => write!(f, "apiserver: 1.{from} to 1.{to}"),
        }
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} at node {}", self.kind, self.node)?;
        if !self.lasts.is_zero() {
            write!(f, ", {:?}", self.lasts)?;
        }
        if self.kind == Kind::Switched {
            write!(f, ", without {:?}", self.without)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
