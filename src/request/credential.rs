//! What newer kube-apiservers give the users of client certificates besides name and groups: a credential-id, which
//! says what certificate it was (from 1.32 on), and the UID that is in its subject (from 1.34 on, where
//! `AllowParsingUserUIDFromCertAuth` is the default). Pure.
//!
//! Behind a proxy each travels in a requestheader of its own.

use http::{HeaderName, HeaderValue};
use ring::digest::{SHA256, digest};
use x509_parser::prelude::X509Name;
use x509_parser::{der_parser::Oid, der_parser::oid};

/// The extra's key, escaped as client-go escapes what a header's name cannot have, in lower case as HTTP/2 wants it.
const KEY: &str = "authentication.kubernetes.io%2fcredential-id";
/// The first minor version of Kubernetes 1 that has it.
const SINCE: u32 = 32;
/// The first one that reads UIDs.
const UID_SINCE: u32 = 34;
/// Kubernetes' own attribute of a subject: the user's UID.
const UID: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);

/// What the users of an apiserver have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Details {
    /// The credential-id.
    pub credential_id: bool,
    /// The certificate's UID.
    pub uid: bool,
}

/// What identifies a certificate: kube-apiserver's `X509SHA256=` and the SHA-256 of all its bytes in hex.
pub fn id(certificate: &[u8]) -> Option<HeaderValue> {
    let digest = digest(&SHA256, certificate);
    let hex = data_encoding::HEXLOWER.encode(digest.as_ref());
    HeaderValue::try_from(format!("X509SHA256={hex}")).ok()
}

/// The header that carries it, by the start that the apiserver expects of extras.
pub fn header(prefix: &str) -> Option<HeaderName> {
    HeaderName::try_from(format!("{prefix}{KEY}")).ok()
}

/// A subject has several UIDs, or one that is no text: kube-apiserver refuses such a certificate.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

/// The UID in a certificate's subject, if there is one.
pub fn uid<'a>(subject: &'a X509Name<'_>) -> Result<Option<&'a str>, Malformed> {
    let mut uids = subject.iter_by_oid(&UID);
    match (uids.next(), uids.next()) {
        (None, _) => Ok(None),
        (Some(uid), None) => uid.as_str().map(Some).map_err(|_| Malformed),
        (Some(_), Some(_)) => Err(Malformed),
    }
}

/// What an apiserver of this version (`v1.36.0-rc.1`) gives its users. What cannot be read is an old version.
pub fn details(version: &str) -> Details {
    let is_since = |minor| is_since(version, minor);
    Details {
        credential_id: is_since(SINCE),
        uid: is_since(UID_SINCE),
    }
}

fn is_since(version: &str, wanted: u32) -> bool {
    let mut numbers = version.trim_start_matches('v').split('.');
    let mut next = || {
        let number = numbers.next()?;
        let digits = number.find(|c: char| !c.is_ascii_digit());
        number
            .get(..digits.unwrap_or(number.len()))?
            .parse::<u32>()
            .ok()
    };
    match (next(), next()) {
        (Some(major), Some(minor)) => (major, minor) >= (1, wanted),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_sha_256_of_the_whole_certificate() {
        // Of no bytes at all, which is well known.
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
            assert_eq!(details(version), Details::default(), "{version}");
        }
        assert!(!details("v1.33.4").uid);
        assert!(details("v1.34.0").uid);
    }
}
