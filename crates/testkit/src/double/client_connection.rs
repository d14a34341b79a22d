//! A client connection, shared by its requests.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tokio::sync::Notify;

use super::front_door::FrontDoor;

pub struct ClientConnection {
    pub connection_id: u64,
    /// Ends the connection once its running requests have ended: GOAWAY, or `Connection: close`.
    pub goaway: Notify,
    /// The client's certificate chain, leaf first; empty: none.
    pub chain: Vec<CertificateDer<'static>>,
    /// Common name of the leaf.
    pub cn: Option<String>,
    pub door: Option<Arc<FrontDoor>>,
}
