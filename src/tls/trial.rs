//! Tries a configuration of the TLS port before it is used: one handshake for each certificate, in memory.
//!
//! Each file of a configuration may be right although no handshake succeeds: a chain may be longer than any client takes.

use std::net::Ipv4Addr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error, ServerConfig,
    ServerConnection, SignatureScheme,
};

use super::store;

/// Performs a handshake with a client that can do what this program can, presents no certificate and accepts any.
pub(super) fn handshake(server: &Arc<ServerConfig>) -> Result<(), Error> {
    let client = ClientConfig::builder_with_provider(store::provider())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAny))
        .with_no_client_auth();
    let name = ServerName::from(Ipv4Addr::LOCALHOST);
    let mut client = Connection::from(ClientConnection::new(Arc::new(client), name)?);
    let mut server = Connection::from(ServerConnection::new(server.clone())?);
    while client.is_handshaking() || server.is_handshaking() {
        let sent = transfer(&mut client, &mut server)? + transfer(&mut server, &mut client)?;
        if sent == 0 {
            return Err(Error::HandshakeNotComplete);
        }
    }
    Ok(())
}

/// Returns the number of bytes.
fn transfer(from: &mut Connection, to: &mut Connection) -> Result<usize, Error> {
    let full = |_| Error::General("a message is too large".to_owned());
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).map_err(full)?;
    }
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        to.read_tls(&mut rest).map_err(full)?;
        to.process_new_packets()?;
    }
    Ok(bytes.len())
}

/// Nothing leaves this process.
#[derive(Debug)]
pub(super) struct AcceptAny;

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        store::provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
