//! Server IDs, Leases, and what proxies publish (KEP-1965).

pub mod duplicate_id;
pub mod facts;
pub mod lease;
pub mod leases_of_others;
pub mod named;
pub mod published;
pub mod renamed;
pub mod rewritten;
pub mod starting;
pub mod taken_ids;

/// Where identity Leases are.
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
