//! How newer kube-apiservers treat credentials. Besides name and groups, a certificate user gets a credential-id that
//! identifies the certificate (since 1.32) and the UID in the certificate's subject (since 1.33, where
//! `AllowParsingUserUIDFromCertAuth` is the default). An apiserver closes the connection after an anonymous request
//! (since 1.29). Pure.
//!
//! A proxy sends credential-id and UID in separate requestheaders.

use http::{HeaderName, HeaderValue};
use ring::digest::{SHA256, digest};

use crate::kube::version::numbers;
use crate::x509::Attribute;

/// The key of the extra: escaped for a header name as in client-go, in lower case for HTTP/2.
const KEY: &str = "authentication.kubernetes.io%2fcredential-id";
/// The first minor version of Kubernetes 1 with credential-ids.
const SINCE: u32 = 32;
/// The first minor version that reads UIDs.
const UID_SINCE: u32 = 33;
/// The subject attribute that Kubernetes defines for the user's UID: 1.3.6.1.4.1.57683.2.
const UID: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];

/// The first minor version that closes an HTTP/2 connection after an anonymous request
/// (`UnauthenticatedHTTP2DOSMitigation`).
const ENDS_SINCE: u32 = 29;

/// How an apiserver treats credentials.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CredentialFeatures {
    /// It gives certificate users a credential-id.
    pub credential_id: bool,
    /// It reads the UID in a certificate.
    pub uid: bool,
    /// It closes connections after anonymous requests.
    pub ends_anonymous: bool,
}

/// The credential-id of a certificate: kube-apiserver's `X509SHA256=` and the SHA-256 of all its bytes in hex.
pub fn id(certificate: &[u8]) -> Option<HeaderValue> {
    let digest = digest(&SHA256, certificate);
    let hex = data_encoding::HEXLOWER.encode(digest.as_ref());
    HeaderValue::try_from(format!("X509SHA256={hex}")).ok()
}

/// The header for the credential-id. Its prefix is the apiserver's prefix for extras.
pub fn header(prefix: &str) -> Option<HeaderName> {
    HeaderName::try_from(format!("{prefix}{KEY}")).ok()
}

/// The UID in a certificate's subject, if there is one. `None`: there are several, or one that is not text, and
/// kube-apiserver refuses such a certificate.
pub fn uid<'a>(subject: &[Attribute<'a>]) -> Option<Option<&'a str>> {
    let mut uids = subject.iter().filter(|it| it.id == UID);
    match (uids.next(), uids.next()) {
        (None, _) => Some(None),
        (Some(uid), None) => uid.text().map(Some),
        (Some(_), Some(_)) => None,
    }
}

/// How an apiserver of this version (`v1.36.0-rc.1`) treats credentials. A version that cannot be parsed counts as old
/// for what a user gets, and as new for what is refused.
pub fn details(version: &str) -> CredentialFeatures {
    let number = minor(version);
    let is_since = |wanted| number.is_some_and(|minor| minor >= wanted);
    CredentialFeatures {
        credential_id: is_since(SINCE),
        uid: is_since(UID_SINCE),
        ends_anonymous: number.is_none_or(|minor| minor >= ENDS_SINCE),
    }
}

/// The minor version of Kubernetes 1; the highest number for later major versions.
pub fn minor(version: &str) -> Option<u32> {
    match numbers(version) {
        [0, ..] => None,
        [1, minor, _] => Some(minor),
        _ => Some(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_sha_256_of_the_whole_certificate() {
        // The SHA-256 of the empty input.
        let id = id(b"").unwrap();
        assert_eq!(
            id,
            "X509SHA256=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn its_key_is_escaped() {
        assert_eq!(
            header("x-remote-extra-").unwrap(),
            "x-remote-extra-authentication.kubernetes.io%2fcredential-id"
        );
    }

    #[test]
    fn servers_from_1_32_on_know_it() {
        for version in [
            "v1.32.0",
            "1.32",
            "v1.36.1",
            "v1.40+",
            "v1.32-alpha",
            "v2.0.0",
        ] {
            assert!(details(version).credential_id, "{version}");
        }
        for version in [
            "v1.31.9", "v1.20.2", "v1", "v1.", "", "v0.40", "v.32", "v1.x32",
        ] {
            let details = details(version);
            assert!(!details.credential_id && !details.uid, "{version}");
        }
        assert!(!details("v1.32.4").uid);
        assert!(details("v1.33.0").uid);
    }

    #[test]
    fn anonymous_connections_are_ended_by_1_29_and_later_and_by_what_says_no_version() {
        for version in ["v1.29.0", "v1.36.1", "v2.0.0", "", "v0.0.0-master", "dev"] {
            assert!(details(version).ends_anonymous, "{version}");
        }
        for version in ["v1.28.15", "v1.20.2", "1.20+"] {
            assert!(!details(version).ends_anonymous, "{version}");
        }
    }
}
