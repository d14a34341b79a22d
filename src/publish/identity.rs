//! Computes or generates the server ID (KEP-1965).

use std::sync::Arc;

use data_encoding::BASE32_NOPAD;
use rand::Rng;

use crate::cluster::leases::NamedLease;
use crate::cluster::members::OthersIds;
use crate::config::is_subdomain;
use crate::request::credential::minor;

const BASE58: &[u8] = b"123456789abcdefghijkmnopqrstuvwxyz";
const LONGEST: usize = 63;

/// What Leases show. API users can write them: an ID that another server has is never shown as ours.
pub struct ShownIds<'a> {
    /// This host's name.
    pub host: &'a str,
    pub leases: &'a [Arc<NamedLease>],
    pub others: &'a OthersIds,
}

impl<'a> ShownIds<'a> {
    /// What kube-apiserver computes from the host's name (1.28 and later, then 1.26 and 1.27), if there is a Lease of this
    /// name.
    pub fn computed(&self) -> Option<&'a str> {
        let forms = [hashed_with_component(self.host), hashed(self.host)];
        forms.iter().find_map(|id| {
            let lease = self.leases.iter().find(|lease| lease.name == *id)?;
            (!self.others.proxied.contains(id)).then_some(&*lease.name)
        })
    }

    /// This ID, if the apiserver keeps the Lease of this name.
    pub fn kept(&self, id: &str) -> Option<&'a str> {
        let mut names = self.of_apiservers().map(|lease| &*lease.name);
        names.find(|name| *name == id)
    }

    /// The ID of the Lease that is labelled with this host's name. Such a label proves nothing.
    pub fn labelled(&self) -> Option<&'a str> {
        let here = |lease: &&NamedLease| {
            lease.value.hostname.as_deref() == Some(self.host)
                && !self.others.proxied.contains(&lease.name)
                && !self.others.native.contains(&lease.name)
        };
        self.of_apiservers().find(here).map(|lease| &*lease.name)
    }

    /// Identities of apiservers that keep them themselves. A Lease that a proxy keeps for a host of the same name does not
    /// count.
    fn of_apiservers(&self) -> impl Iterator<Item = &'a NamedLease> {
        let leases = self.leases.iter().map(|lease| &**lease);
        leases.filter(|lease| {
            // Keys of etcd can be anything.
            is_subdomain(&lease.name) && lease.value.identity && !lease.value.published
        })
    }
}

/// The ID that a kube-apiserver of `version` gives itself on `host`; `None`: before 1.26 a random one, or none.
pub fn computed(host: &str, version: &str) -> Option<String> {
    match minor(version)? {
        28.. => Some(hashed_with_component(host)),
        26.. => Some(hashed(host)),
        _ => None,
    }
}

/// `apiserver-` and a hash over host name and component name, each after its length in two bytes.
fn hashed_with_component(host: &str) -> String {
    let mut hashed = Vec::new();
    for part in [host, "kube-apiserver"] {
        // No host name is longer than 255 bytes.
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
        hashed.extend_from_slice(&length.to_be_bytes());
        hashed.extend_from_slice(part.as_bytes());
    }
    format!("apiserver-{}", digest(&hashed))
}

/// `kube-apiserver-` and a hash over the host name, as in Kubernetes 1.26 and 1.27.
fn hashed(host: &str) -> String {
    format!("kube-apiserver-{}", digest(host.as_bytes()))
}

/// The first 16 bytes of SHA-256, in lower-case base32 without padding.
fn digest(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    let half: Vec<u8> = digest.as_ref().iter().copied().take(16).collect();
    BASE32_NOPAD.encode(&half).to_ascii_lowercase()
}

/// This host's name, as kube-apiserver sees it.
pub fn host_name() -> String {
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

/// A generated ID: host name, process ID and 6 random digits, as a Lease could be named.
pub fn own() -> Arc<str> {
    own_id(&host_name(), std::process::id(), &mut rand::thread_rng())
}

fn own_id(host: &str, process: u32, random: &mut impl Rng) -> Arc<str> {
    let digits: String = (0..6)
        .map(|_| char::from(BASE58[random.gen_range(0..BASE58.len())]))
        .collect();
    let tail = format!("-{process}-{digits}");
    // A Lease's name: lower case letters, digits, `-` and `.`, beginning and ending with a letter or digit.
    let lower = host.to_lowercase();
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let host = lower.replace(|c| !is_part(c) && c != '.', "-");
    let host: String = host.chars().take(LONGEST - tail.len()).collect();
    let labels = host.split('.').map(|label| label.trim_matches('-'));
    let labels: Vec<_> = labels.filter(|label| !label.is_empty()).collect();
    match labels.is_empty() {
        true => format!("proxy{tail}").into(),
        false => format!("{}{tail}", labels.join(".")).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::codec::Lease;

    #[test]
    fn an_own_id_can_name_a_lease() {
        for host in [
            "cp-a",
            "CP_A.Example.COM",
            "",
            "---",
            "a..b-.c",
            &"x".repeat(300),
            "höst",
        ] {
            let id = own_id(host, 4_194_304, &mut rand::thread_rng());
            assert!(id.len() <= LONGEST && is_subdomain(&id), "{id}");
        }
    }

    #[test]
    fn only_subdomains_name_leases() {
        for name in ["a", "cp-a.example.com", "0", &"x".repeat(253)] {
            assert!(is_subdomain(name), "{name}");
        }
        for name in [
            "",
            "A",
            "a/b",
            "a b",
            "a?b",
            "-a",
            "a-",
            "a..b",
            "ä",
            &"x".repeat(254),
        ] {
            assert!(!is_subdomain(name), "{name}");
        }
    }

    #[test]
    fn ids_are_those_that_kube_apiserver_computes() {
        for (host, id) in [
            ("cp-a", "apiserver-tqsyvnc7rs47fayzipsuqpfg4m"),
            ("cp-b", "apiserver-imkgstwjs6opnbwk2ixluu6fiq"),
        ] {
            assert_eq!(hashed_with_component(host), id);
        }
        // What Kubernetes documents for 1.26: base32 of SHA-256 over the plain name.
        let id = hashed("cp-a");
        let digits = id.strip_prefix("kube-apiserver-").unwrap();
        assert_eq!(digits.len(), 26);
    }

    #[test]
    fn from_1_26_on_the_version_tells_the_form_of_the_id() {
        let (new, old) = (hashed_with_component("cp-a"), hashed("cp-a"));
        for (version, id) in [
            ("v1.20.2", None),
            ("v1.25.16", None),
            ("v1.26.0", Some(&old)),
            ("v1.27.3+k3s1", Some(&old)),
            ("v1.28.0-rc.1", Some(&new)),
            ("v1.36.1", Some(&new)),
            ("unknown", None),
        ] {
            assert_eq!(computed("cp-a", version).as_ref(), id, "{version}");
        }
    }

    fn named(leases: &[(&str, &Lease)]) -> Vec<Arc<NamedLease>> {
        let named = leases.iter().map(|(name, lease)| NamedLease {
            namespace: 0,
            name: (*name).to_owned(),
            revision: 1,
            value: (*lease).clone(),
        });
        named.map(Arc::new).collect()
    }

    #[test]
    fn leases_show_ids_that_no_other_server_has() {
        let lease = |hostname: Option<&str>, identity| Lease {
            identity,
            published: false,
            hostname: hostname.map(str::to_owned),
            holder: None,
            duration: None,
            renewed: None,
            uid: String::new(),
        };
        let (here, there) = (lease(Some("cp-a"), true), lease(Some("cp-b"), true));
        let (of_user, unnamed) = (lease(Some("cp-a"), false), lease(None, true));
        let (new, old) = (hashed_with_component("cp-a"), hashed("cp-a"));
        let (labelled, other) = (("labelled", &here), ("other", &there));
        let (user, bad) = (("user", &of_user), ("no/name", &here));
        let (new_lease, old_lease) = ((&*new, &unnamed), (&*old, &unnamed));
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        let nobody = OthersIds::default();
        let proxied = OthersIds {
            proxied: ids(&[&new, "labelled"]),
            ..OthersIds::default()
        };
        let native = OthersIds {
            native: ids(&[&new, "labelled"]),
            ..OthersIds::default()
        };
        for (leases, others, computed, by_label) in [
            (&[][..], &nobody, None, None),
            (&[other, user, bad], &nobody, None, None),
            (&[other, labelled], &nobody, None, Some("labelled")),
            (&[old_lease], &nobody, Some(&*old), None),
            (&[old_lease, new_lease], &nobody, Some(&*new), None),
            (&[old_lease, new_lease], &proxied, Some(&*old), None),
            (&[new_lease, labelled], &proxied, None, None),
            // The entry is that of its own apiserver.
            (&[new_lease, labelled], &native, Some(&*new), None),
        ] {
            let leases = &named(leases);
            let shown = ShownIds {
                host: "cp-a",
                leases,
                others,
            };
            let found = (shown.computed(), shown.labelled());
            assert_eq!(found, (computed, by_label), "{leases:?} {others:?}");
        }
        let shown = ShownIds {
            host: "cp-a",
            leases: &named(&[user, other]),
            others: &nobody,
        };
        assert_eq!(
            (shown.kept("other"), shown.kept("user")),
            (Some("other"), None)
        );
    }

    #[test]
    fn two_processes_on_one_host_have_different_ids() {
        let mut random = rand::thread_rng();
        assert_ne!(
            own_id("cp-a", 7, &mut random),
            own_id("cp-a", 7, &mut random)
        );
    }
}
