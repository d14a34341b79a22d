//! The report for operators: how far etcd is known, and what in it needs their attention. Pure.

use serde_json::{Value, json};

use super::bare::MAX_ASKED;
use super::keys::{claimant, claims_an_id};
use super::state::ClusterState;
use super::unproxied::NotRead;

/// Most advertised addresses that are named.
const NAMED: usize = 100;

impl ClusterState {
    /// The report, as JSON.
    pub fn report(&self) -> Value {
        let topics = self.topics.iter().map(|(topic, progress)| {
            json!({
                "topic": topic.name(),
                "revision": progress.revision,
                "lists": progress.lists,
            })
        });
        let leases = self.leases.iter().map(|lease| {
            json!({
                "name": lease.name,
                "holder": lease.value.holder,
                "publishedByProxy": lease.value.published,
            })
        });
        let own = self.former_record();
        let claims = self.claims.iter().map(|(key, _)| key);
        // Those of proxies that have no server ID yet.
        let (claims, unnamed): (Vec<_>, Vec<_>) = claims.partition(|key| claims_an_id(key));
        let unnamed = unnamed.into_iter().filter_map(|key| claimant(key));
        json!({
            "topics": topics.collect::<Vec<_>>(),
            "notFollowed": self.forbidden.iter().map(|topic| topic.name()).collect::<Vec<_>>(),
            "undecodable": self.undecodables.list(),
            "apiserverVersion": own.and_then(|own| own.binary_version),
            "leases": leases.collect::<Vec<_>>(),
            "claims": claims,
            "unnamed": unnamed.collect::<Vec<_>>(),
            "advertised": self.advertised_facts(),
        })
    }

    /// The addresses that living apiservers advertise, and what those answered that no proxy explains.
    fn advertised_facts(&self) -> Value {
        let unexplained = self.unexplained();
        let masters = self.masters.iter().take(NAMED);
        let facts = masters.map(|(_, at)| {
            let found = unexplained.iter().position(|it| it.ip() == at.value);
            let said = found.map(|index| match self.asked_now(unexplained[index]) {
                Some(asked) => match asked.failure {
                    None => "bare",
                    Some(NotRead::Unreadable) => "bare, its discovery cannot be read",
                    Some(NotRead::Silent) => "does not answer",
                    Some(NotRead::Nobody) => "no apiserver answers",
                    Some(NotRead::Proxy) => "leads to a proxy",
                },
                None if index < MAX_ASKED => "not asked yet",
                None => "not asked, there are too many",
            });
            json!({"address": at.value, "withoutProxy": said})
        });
        facts.collect()
    }
}
