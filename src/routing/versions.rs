//! Which versions of apiservers a request prefers, while they differ. It only orders the servers that list a resource.
//! Pure.

use std::cmp::Reverse;

use super::table::{Server, Snapshot};
use crate::kube::version::KubernetesVersion;

/// The versions of live servers, while they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionWindow {
    pub oldest: KubernetesVersion,
    pub newest: KubernetesVersion,
}

impl VersionWindow {
    /// `None`: fewer than two different versions.
    pub fn of(versions: impl Iterator<Item = KubernetesVersion> + Clone) -> Option<Self> {
        let (oldest, newest) = versions.clone().min().zip(versions.max())?;
        (oldest < newest).then_some(Self { oldest, newest })
    }
}

/// Which servers a request prefers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The client asks for this version: equal ones first, then the local server if it is later, then the nearest later
    /// ones, then the others.
    Version(KubernetesVersion),
    /// The local server if it is not older than this, then the nearest that is not, then the others.
    NotOlder {
        version: KubernetesVersion,
        /// Before this one a server would misunderstand the request: it comes after those that would not.
        needed: Option<KubernetesVersion>,
    },
    /// `versionAwareness.default: Oldest`
    Oldest,
    /// `versionAwareness.default: Newest`
    Newest,
}

impl Wanted {
    /// Whether a server that is not ready is passed over for one of another version. A client that names a version gets it
    /// as long as it can be had.
    pub fn needs_ready(self) -> bool {
        !matches!(self, Self::Version(_))
    }

    /// Whether reads go elsewhere while many are under way.
    pub fn is_bounded(self) -> bool {
        !matches!(self, Self::Version(_)) && self.needed().is_none()
    }

    /// The first version that understands the request.
    pub fn needed(self) -> Option<KubernetesVersion> {
        match self {
            Self::NotOlder { needed, .. } => needed,
            _ => None,
        }
    }

    /// How well a server fits.
    pub fn fit(self, version: Option<KubernetesVersion>, local: bool) -> Fit {
        match (self, version) {
            (Self::Version(wanted), Some(version)) if version == wanted => Fit::First,
            (
                Self::Version(at_least)
                | Self::NotOlder {
                    version: at_least, ..
                },
                Some(version),
            ) if version >= at_least => match local {
                true => Fit::Local,
                false => Fit::Nearest(version),
            },
            (Self::Oldest, Some(version)) => Fit::Nearest(version),
            (Self::Newest, Some(version)) => Fit::Farthest(Reverse(version)),
            (_, Some(_)) if self.needed().is_some_and(|it| version >= Some(it)) => Fit::Understands,
            _ => Fit::Rest,
        }
    }
}

/// How well a server fits what is wanted. The best fit is the smallest value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    First,
    /// The local server, if it is late enough.
    Local,
    Nearest(KubernetesVersion),
    Farthest(Reverse<KubernetesVersion>),
    /// It is too old, and understands the request.
    Understands,
    /// What ran there before would fit; what runs there now has not told its version.
    Former,
    /// All others, and those that do not say their version.
    Rest,
}

impl Server {
    /// How well it fits as a peer.
    pub fn fit(&self, wanted: Wanted) -> Fit {
        match wanted.fit(self.version, false) {
            Fit::Rest => Fit::Rest,
            fit if self.told_version().is_some() => fit,
            _ => Fit::Former,
        }
    }

    /// The version of the process that runs there now, where known.
    pub fn told_version(&self) -> Option<KubernetesVersion> {
        self.version.filter(|_| self.tells_itself())
    }

    /// What is known of it is of the process that runs there now.
    pub fn tells_itself(&self) -> bool {
        self.known || self.draining
    }
}

impl Snapshot {
    /// The version that the local apiserver emulates, where known.
    pub fn set_local_version(&mut self, version: Option<KubernetesVersion>) {
        let live = self.servers.iter().filter(|server| server.live);
        let versions = live.filter_map(|server| server.version).chain(version);
        self.window = VersionWindow::of(versions);
        self.local_version = version;
    }

    /// Those of `targets` ([`super::table::Holders::targets`], which are in the order of their versions) that come before the
    /// local apiserver.
    pub fn before_local<'s>(&self, targets: &'s [usize], wanted: Wanted) -> &'s [usize] {
        let local = wanted.fit(self.local_version, true);
        self.those(targets, |server| server.fit(wanted) < local)
    }

    /// Those of `targets`, of the same order, for which `is` holds, as far as they are next to each other. Those that have not
    /// told their versions are left out where others are between.
    pub fn those<'s>(&self, targets: &'s [usize], is: impl Fn(&Server) -> bool) -> &'s [usize] {
        let is = |index: &usize| is(&self.servers[*index]);
        let mut runs = targets.chunk_by(|one, other| is(one) == is(other));
        runs.find(|run| is(&run[0])).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> KubernetesVersion {
        text.parse().unwrap()
    }

    fn order(wanted: Wanted) -> Vec<String> {
        let mut servers: Vec<_> = ["1.31", "1.32", "1.33", "1.34", "2.0", ""]
            .into_iter()
            .flat_map(|text| [(text, false), (text, true)])
            .collect();
        let fit = |(text, local): &(&str, bool)| wanted.fit(text.parse().ok(), *local);
        servers.sort_by_key(fit);
        let servers = servers.into_iter().map(|server| (fit(&server), server));
        let name = |(text, local)| format!("{text}{}", if local { " local" } else { "" });
        let ranked = servers.filter(|(fit, _)| *fit != Fit::Rest);
        ranked.map(|(_, server)| name(server)).collect()
    }

    #[test]
    fn the_same_comes_first_then_the_local_server_if_it_is_later_then_the_nearest_later_one() {
        let expected = [
            "1.32",
            "1.32 local",
            "1.33 local",
            "1.34 local",
            "2.0 local",
            "1.33",
            "1.34",
            "2.0",
        ];
        assert_eq!(order(Wanted::Version(version("1.32"))), expected);
        assert_eq!(order(Wanted::Version(version("2.1"))).len(), 0);
    }

    #[test]
    fn a_client_that_is_newer_gets_the_nearest_that_is_not_older() {
        let expected = [
            "1.32 local",
            "1.33 local",
            "1.34 local",
            "2.0 local",
            "1.32",
            "1.33",
            "1.34",
            "2.0",
        ];
        let wanted = |needed: &str| Wanted::NotOlder {
            version: version("1.32"),
            needed: needed.parse().ok(),
        };
        assert_eq!(
            ["", "1.32"].map(|needed| order(wanted(needed))),
            [expected; 2]
        );
        let understand = ["1.31", "1.31 local"];
        assert_eq!(order(wanted("1.31")), [&expected[..], &understand].concat());
    }

    #[test]
    fn a_policy_orders_all_that_say_their_version() {
        let up = ["1.31", "1.32", "1.33", "1.34", "2.0"];
        let both = |text: &&str| [(*text).to_owned(), format!("{text} local")];
        let expected: Vec<_> = up.iter().flat_map(both).collect();
        assert_eq!(order(Wanted::Oldest), expected);
        let expected: Vec<_> = up.iter().rev().flat_map(both).collect();
        assert_eq!(order(Wanted::Newest), expected);
    }

    #[test]
    fn versions_differ_only_if_two_are_known() {
        let window = |texts: &[&str]| {
            let versions = texts.iter().filter_map(|text| text.parse().ok());
            VersionWindow::of(versions).map(|it| (it.oldest.to_string(), it.newest.to_string()))
        };
        for texts in [
            &[][..],
            &["1.32"],
            &["1.32", "1.32"],
            &["1.32", ""],
            &["", "x"],
        ] {
            assert_eq!(window(texts), None, "{texts:?}");
        }
        let found = window(&["1.33", "", "1.9", "1.20"]);
        assert_eq!(found, Some(("1.9".into(), "1.33".into())));
    }
}
