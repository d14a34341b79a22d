//! The status page, condensed to what the tour is about.

use serde_json::Value;

use crate::stage::peers;

/// What a status page says, condensed.
pub struct Known {
    pub lines: Vec<String>,
    pub groups_of_b_alone: Vec<String>,
}

impl Known {
    pub fn of(status: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let server = &status["server"];
        let resources: Vec<_> = status["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .collect();
        let at_peers = |resource: &Value| {
            resource["peers"]
                .as_array()
                .is_some_and(|peers| !peers.is_empty())
        };
        let here = |resource: &Value| resource["local"] == true;
        let count = |local, peers| {
            resources
                .iter()
                .filter(|resource| here(resource) == local && at_peers(resource) == peers)
                .count()
        };
        let alone = || {
            resources
                .iter()
                .filter(|resource| !here(resource) && at_peers(resource))
        };
        let mut groups_of_b_alone: Vec<_> =
            alone().map(|resource| text(&resource["group"])).collect();
        groups_of_b_alone.dedup();
        let mut lines = vec![format!(
            "this server: {} at {}, initialized: {}; etcd revision {}",
            text(&server["id"]),
            text(&server["endpoint"]),
            server["initialized"],
            status["etcd"]["revision"],
        )];
        for peer in peers(status) {
            lines.push(format!(
                "peer: {} at {}, {}, live: {}, initialized: {}, {} resources",
                text(&peer["id"]),
                text(&peer["endpoint"]),
                text(&peer["binaryVersion"]),
                peer["live"],
                peer["initialized"],
                peer["resources"],
            ));
        }
        lines.push(format!(
            "resources and subresources: {} at both, {} only here, {} only at the peer:",
            count(true, true),
            count(true, false),
            count(false, true),
        ));
        for resource in alone() {
            let subresource = match text(&resource["subresource"]) {
                none if none.is_empty() => none,
                name => format!("/{name}"),
            };
            lines.push(format!(
                "  {}/{} {}{subresource}",
                text(&resource["group"]),
                text(&resource["version"]),
                text(&resource["resource"]),
            ));
        }
        Self {
            lines,
            groups_of_b_alone,
        }
    }
}
