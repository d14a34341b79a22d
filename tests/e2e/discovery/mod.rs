//! Merged discovery and OpenAPI (KEP-4020).

pub mod documents;
pub mod half_dead;
pub mod hidden;
pub mod hidden_by_real_apiservers;
pub mod openapi;
pub mod peer_discovery;
pub mod real_apiservers;
pub mod sources;
pub mod storage_versions;
pub mod walk;
