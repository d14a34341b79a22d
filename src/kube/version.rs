//! Versions of Kubernetes: compatibility versions, and the `/version` document. Pure.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// A compatibility version: the binary's version, or the version that it emulates (KEP-4330).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KubernetesVersion {
    major: u32,
    minor: u32,
}

impl KubernetesVersion {
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

/// Not of the form `major.minor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a version of the form major.minor")]
pub struct MalformedVersion;

impl FromStr for KubernetesVersion {
    type Err = MalformedVersion;

    /// `1.32` or `v1.32`, as in `kube-apiserver --emulated-version`: no patch version, no leading zeros.
    fn from_str(text: &str) -> Result<Self, MalformedVersion> {
        let numbers = text.strip_prefix('v').unwrap_or(text);
        let (major, minor) = numbers.split_once('.').ok_or(MalformedVersion)?;
        Ok(Self {
            major: number(major)?,
            minor: number(minor)?,
        })
    }
}

fn number(text: &str) -> Result<u32, MalformedVersion> {
    // The integer parser also accepts a plus sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = digits && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain).ok_or(MalformedVersion)
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionInfo {
    git_version: String,
    #[serde(default)]
    major: String,
    #[serde(default)]
    minor: String,
    emulation_major: Option<String>,
    emulation_minor: Option<String>,
}

/// Versions of an apiserver, from `/version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// `gitVersion`, as `v1.20.2`.
    pub binary: String,
    /// The emulation version if present, else major and minor: `1.20`. `None` for builds without version information.
    pub compatibility: Option<KubernetesVersion>,
}

/// Reads `/version`.
pub fn versions(document: &[u8]) -> Result<Versions, serde_json::Error> {
    let info: VersionInfo = serde_json::from_slice(document)?;
    let major = info.emulation_major.unwrap_or(info.major);
    let minor = info.emulation_minor.unwrap_or(info.minor);
    // Some distributions append a plus sign to the minor version.
    let minor = minor.trim_end_matches(|c: char| !c.is_ascii_digit());
    Ok(Versions {
        binary: info.git_version,
        compatibility: format!("{major}.{minor}").parse().ok(),
    })
}

/// Major, minor and patch of a binary's version, without what distributions append (`+k3s1`, `-gke.100`) and without the name
/// of a candidate (`-rc.1`). What is no number is 0.
pub fn numbers(version: &str) -> [u32; 3] {
    let mut parts = version.trim_start_matches('v').split('.').map(|part| {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        part.get(..digits).unwrap_or(part).parse().unwrap_or(0)
    });
    [0; 3].map(|none| parts.next().unwrap_or(none))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(text: &str) -> KubernetesVersion {
        text.parse().unwrap()
    }

    #[test]
    fn major_and_minor_are_numbers_and_a_v_may_stand_before_them() {
        assert_eq!(version("v1.32"), version("1.32"));
        assert_eq!(version("v1.32").to_string(), "1.32");
        assert_eq!(version("0.0").to_string(), "0.0");
        let order = ["0.9", "1.9", "1.10", "1.32", "2.0"].map(version);
        assert!(order.is_sorted());
    }

    #[test]
    fn anything_else_is_malformed() {
        for text in [
            "",
            "v",
            ".",
            "1",
            "1.",
            ".32",
            "1.32.0",
            "1.32-rc.1",
            "1.36+",
            "1.+3",
            "-1.3",
            "01.32",
            "1.032",
            "1.32 ",
            "vv1.32",
            "V1.32",
            "1,32",
            "1.32,1.32",
            "1.4294967296",
            "1.3٢",
            "latest",
        ] {
            assert_eq!(
                text.parse::<KubernetesVersion>(),
                Err(MalformedVersion),
                "{text:?}"
            );
        }
    }

    #[test]
    fn versions_are_the_emulated_ones_where_there_are_such() {
        let old = include_bytes!("../../tests/data/kube-apiserver-v1.20.2/version.json");
        assert_eq!(
            versions(old).unwrap().compatibility,
            None,
            "a build without version information"
        );
        let released = br#"{"major":"1","minor":"20","gitVersion":"v1.20.2"}"#;
        assert_eq!(
            versions(released).unwrap().compatibility,
            "1.20".parse().ok()
        );
        let new = include_bytes!("../../tests/data/kube-apiserver-v1.36/version.json");
        assert_eq!(
            versions(new).unwrap(),
            Versions {
                binary: "v1.36.0".into(),
                compatibility: "1.36".parse().ok(),
            }
        );
        let emulating = br#"{"major":"1","minor":"36+","gitVersion":"v1.36.1-gke","emulationMajor":"1","emulationMinor":"35"}"#;
        assert_eq!(
            versions(emulating).unwrap().compatibility,
            "1.35".parse().ok()
        );
    }

    #[test]
    fn what_is_no_version_document_is_an_error_and_no_panic() {
        for junk in [
            &b""[..],
            b"null",
            b"[]",
            b"{",
            b"404 page not found",
            b"\xff",
        ] {
            assert!(versions(junk).is_err());
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(major: u32, minor: u32) {
            let version = KubernetesVersion { major, minor };
            prop_assert_eq!(version.to_string().parse(), Ok(version));
        }

        #[test]
        fn no_text_makes_it_panic(text: String) {
            if let Ok(version) = text.parse::<KubernetesVersion>() {
                let plain = text.strip_prefix('v').unwrap_or(&text);
                prop_assert_eq!(version.to_string(), plain);
            }
        }
    }
}
