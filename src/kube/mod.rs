//! Kubernetes' names and documents. Pure: nothing here depends on the proxy.

pub mod client_headers;
pub mod discovery;
pub mod envelope;
pub mod gvr;
pub mod media_type;
pub mod requestheader;
pub mod version;
