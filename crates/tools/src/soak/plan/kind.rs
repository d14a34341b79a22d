//! The kinds of faults, and what each of them excuses. Pure.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use crate::table::Sort;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Apiserver,
    Proxy,
    /// The apiserver and its proxy at the same moment.
    Both,
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
    /// Silent are all links of a node but the one to its own apiserver.
    Unreachable,
    /// A member of etcd gets late what its peers say.
    Lagging,
    /// A new proxy takes the address over while the old one drains.
    Replaced,
    /// The proxy is uninstalled, its address is the apiserver's own, and it is installed again.
    Uninstalled,
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

pub(super) fn touches_etcd(kind: Kind) -> bool {
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
            Self::Replaced => &[Sort::Watch, Sort::Stream],
            Self::Delayed(Link::Clients | Link::Peers | Link::Apiserver)
            | Self::Lagging
            | Self::Rotated(Files::Serving)
            | Self::Stepped(_)
            | Self::Defined => &[],
            _ => &[Sort::Request, Sort::Watch, Sort::Stream],
        }
    }

    pub fn excuses_requests(self) -> bool {
        self.explains().contains(&Sort::Request)
    }

    /// Whether reads may wait for its end: what no proxy can shorten. The client's own link or the proxy that it is
    /// connected to does nothing, or the apiserver waits for its member of etcd.
    pub fn holds_reads(self) -> bool {
        touches_etcd(self)
            || matches!(
                self,
                Self::Frozen(Part::Proxy | Part::Both)
                    | Self::Silent(Link::Clients)
                    | Self::Unreachable
            )
    }

    /// Whether another process is the proxy afterwards.
    pub fn ends_proxy(self) -> bool {
        matches!(
            self,
            Self::Killed(Part::Proxy | Part::Both)
                | Self::Terminated(Part::Proxy | Part::Both)
                | Self::Replaced
                | Self::Uninstalled
        )
    }
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
            Self::Both => "apiserver and proxy",
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
            Self::Unreachable => f.write_str("node: unreachable"),
            Self::Replaced => f.write_str("proxy: replaced by a new one"),
            Self::Uninstalled => f.write_str("proxy: uninstalled, installed"),
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
