//! Users: their certificates, tokens and headers, as the apiserver sees them.

pub mod ca_bundles;
pub mod certificates;
pub mod credentials;
pub mod crowd;
pub mod header_names;
pub mod real_apiservers;
pub mod rotation;
pub mod rotation_twice;
pub mod tls_options;
pub mod users;
pub mod x509;
