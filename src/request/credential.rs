//! The credential-id that kube-apiserver, from 1.32 on, gives the users of client certificates: which certificate it
//! was. Pure.
//!
//! It is an extra of the user, so behind a proxy it travels in a requestheader of its own.

use http::{HeaderName, HeaderValue};
use ring::digest::{SHA256, digest};

/// The extra's key, escaped as client-go escapes what a header's name cannot have, in lower case as HTTP/2 wants it.
const KEY: &str = "authentication.kubernetes.io%2fcredential-id";
/// The first minor version of Kubernetes 1 that has it.
const SINCE: u32 = 32;

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

/// Whether an apiserver of this version (`v1.36.0-rc.1`) gives it to users. What cannot be read is no such version.
pub fn is_known_to(version: &str) -> bool {
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
        (Some(major), Some(minor)) => (major, minor) >= (1, SINCE),
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
            assert!(is_known_to(version), "{version}");
        }
        for version in [
            "v1.31.9", "v1.20.2", "v1", "v1.", "", "v0.40", "v.32", "v1.x32",
        ] {
            assert!(!is_known_to(version), "{version}");
        }
    }
}
