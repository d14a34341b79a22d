//! The keys of a small cluster, and their values.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use arbitrary::Arbitrary;
use kube_interop_proxy::cluster::codec::{PeerEndpoint, encode_endpoints};
use kube_interop_proxy::cluster::keys::{Topic, claim};

pub const TOPICS: usize = 10;
pub const OWN_ID: &str = "a";
pub const OWN_ENDPOINT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 6443);

const IDS: [&str; 4] = [OWN_ID, "b", "c", "d"];
/// One of them is another spelling of the second.
const ENDPOINTS: [&str; 5] = [
    "10.0.0.1:6443",
    "10.0.0.2:6443",
    "[::ffff:10.0.0.2]:6443",
    "10.0.0.3:6443",
    "10.0.0.2:443",
];
const ADVERTISED: [&str; 5] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "nowhere"];
const RESOURCES: [&str; 4] = [
    "{}",
    r#"{"v1":["pods","pods/log"]}"#,
    r#"{"v1":["pods"],"apps/v1":["deployments"]}"#,
    r#"{"apps/v1":["deployments"],"example.com/v1":["widgets"]}"#,
];

/// A key is written.
#[derive(Debug, Arbitrary)]
pub struct Write {
    topic: u8,
    name: u8,
    endpoint: u8,
    flag: bool,
    /// Which resources, or which version.
    choice: u8,
    /// How long ago the revision is that a live key names.
    ago: Option<u8>,
    garbage: Option<Vec<u8>>,
}

impl Write {
    /// `revision`: the last one.
    pub fn into_item(self, revision: i64) -> (Topic, String, Vec<u8>) {
        let topic = topic(self.topic);
        let key = key(topic, self.name);
        let value = match self.garbage {
            Some(garbage) => garbage,
            None => self.value(topic, &key, revision),
        };
        (topic, key, value)
    }

    fn value(&self, topic: Topic, key: &str, revision: i64) -> Vec<u8> {
        let endpoint = pick(&ENDPOINTS, self.endpoint);
        let (flag, choice) = (self.flag, self.choice);
        match topic {
            Topic::Servers => {
                let resources = pick(&RESOURCES, choice);
                format!(r#"{{"endpoint":"{endpoint}","historyStart":{choice},"resources":{resources}}}"#)
            }
            Topic::Live => {
                let named = self.ago.map(|ago| revision - i64::from(ago));
                let named = named.map_or(String::new(), |named| format!(r#","recordRevision":{named}"#));
                let other = pick(&IDS, choice);
                let other = if choice < 128 { String::new() } else { format!(r#","apiServerID":"{other}""#) };
                format!(r#"{{"endpoint":"{endpoint}","initialized":{flag}{named}{other}}}"#)
            }
            Topic::Draining => format!(r#"{{"endpoint":"{endpoint}","historyStart":{choice}}}"#),
            Topic::PeerEndpoints => {
                let address = endpoint.parse().expect("an address");
                let server = key.to_owned();
                return encode_endpoints(&PeerEndpoint { server, address }, revision);
            }
            Topic::StorageVersions => {
                let id = pick(&IDS, choice);
                format!(
                    r#"{{"apiVersion":"internal.apiserver.k8s.io/v1alpha1","kind":"StorageVersion","status":{{"storageVersions":[{{"apiServerID":"{id}","encodingVersion":"v1","decodableVersions":["v1"],"servedVersions":["v1"]}}]}}}}"#
                )
            }
            Topic::ApiServices => {
                let service = if flag { r#"{"service":{"name":"x","namespace":"y"}}"# } else { "{}" };
                format!(r#"{{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","spec":{service}}}"#)
            }
            Topic::Leases(_) => {
                let label = if flag { r#"{"apiserver.kubernetes.io/identity":"kube-apiserver"}"# } else { "{}" };
                format!(
                    r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"{key}","labels":{label}}},"spec":{{"holderIdentity":"{choice}"}}}}"#
                )
            }
            Topic::HeaderNames => format!(
                r#"{{"apiVersion":"v1","kind":"ConfigMap","data":{{"requestheader-username-headers":"[\"X-{choice}\"]"}}}}"#
            ),
            Topic::Definitions => format!(
                r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","spec":{{"versions":[{{"name":"v1","served":{flag}}}]}}}}"#
            ),
            Topic::Claims | Topic::MasterLeases => String::new(),
        }
        .into_bytes()
    }
}

pub fn topic(number: u8) -> Topic {
    let mut topics = Topic::all(1);
    topics.nth(usize::from(number) % TOPICS).expect("a topic")
}

pub fn key(topic: Topic, name: u8) -> String {
    let names: &[&str] = match topic {
        Topic::Servers
        | Topic::Live
        | Topic::Draining
        | Topic::PeerEndpoints
        | Topic::Leases(_) => &IDS,
        Topic::StorageVersions => &["core.pods", "apps.deployments", "example.com.widgets"],
        Topic::Definitions => &["widgets.example.com", "deployments.apps", "nothing"],
        Topic::ApiServices => &["v1.example.com", "v1.", "v1.apps", "nothing"],
        Topic::MasterLeases => &ADVERTISED,
        Topic::HeaderNames => &["extension-apiserver-authentication"],
        Topic::Claims => {
            let id = IDS.get(usize::from(name % 8)).copied();
            let endpoint = pick(&ENDPOINTS, name / 8);
            return claim(id, endpoint.parse().expect("an address"));
        }
    };
    pick(names, name).to_owned()
}

fn pick<'a>(from: &[&'a str], number: u8) -> &'a str {
    from[usize::from(number) % from.len()]
}
