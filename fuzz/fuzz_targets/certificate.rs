//! A client's certificate, as it comes in a handshake: whose it is, and that it is only let through if it can be
//! parsed.
#![no_main]

use std::net::Ipv4Addr;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use kube_interop_proxy::request::caller::{Authenticator, Caller, ClientConnection};
use kube_interop_proxy::tls::verify::{AcceptParsable, ClientCas};
use kube_interop_proxy::x509::{PresentedChain, Roots};
use libfuzzer_sys::fuzz_target;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier as _;

/// When the certificates of the corpus are valid.
const NOW: Duration = Duration::from_secs(1_800_000_000);

static AUTHENTICATOR: LazyLock<Authenticator> = LazyLock::new(|| {
    let ca = CertificateDer::from(&include_bytes!("../corpus/certificate/ca.der")[..]);
    Authenticator {
        generation: 0,
        cas: ClientCas {
            users: Roots::new(&[ca]).expect("a CA"),
            peers: Roots::default(),
        },
        allowed_names: Vec::new(),
    }
});

fuzz_target!(|data: &[u8]| {
    let certificate = CertificateDer::from(data);
    let verifier = AcceptParsable::new(&AUTHENTICATOR.cas);
    let now = UnixTime::since_unix_epoch(NOW);
    let accepted = verifier.verify_client_cert(&certificate, &[], now).is_ok();
    // As a leaf, and as what stands between a leaf and its CA.
    let certificate = certificate.into_owned();
    let chain = vec![certificate.clone(), certificate];
    let connection = ClientConnection::new(Ipv4Addr::LOCALHOST.into(), 0, chain);
    let caller = AUTHENTICATOR.caller(&connection, false, SystemTime::UNIX_EPOCH + NOW);
    assert!(accepted || caller == Caller::Unverifiable);
    // As a CA, and as a leaf that is one.
    if let Ok(roots) = Roots::new(&[data])
        && let Some(presented) = PresentedChain::parse(&[data])
    {
        roots.trust(&presented, NOW.as_secs());
    }
    let _ = connection.valid_until(NOW.as_secs());
});
