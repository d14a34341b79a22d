//! Versions of Kubernetes that an apiserver is compatible with, and how well they fit what a client asks for. Pure.

use std::fmt;
use std::str::FromStr;

/// A compatibility version: that of the binary, or the one it emulates (KEP-4330).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
}

/// Not of the form `major.minor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a version of the form major.minor")]
pub struct Malformed;

impl FromStr for Version {
    type Err = Malformed;

    /// `1.32` or `v1.32`, as `kube-apiserver --emulated-version` has it: no patch version, no leading zeros.
    fn from_str(text: &str) -> Result<Self, Malformed> {
        let numbers = text.strip_prefix('v').unwrap_or(text);
        let (major, minor) = numbers.split_once('.').ok_or(Malformed)?;
        Ok(Self {
            major: number(major)?,
            minor: number(minor)?,
        })
    }
}

fn number(text: &str) -> Result<u32, Malformed> {
    // What the integer parser takes besides: a plus sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match digits && (text == "0" || !text.starts_with('0')) {
        true => text.parse().map_err(|_| Malformed),
        false => Err(Malformed),
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// How well a server's version fits the one that is asked for; the best is the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// The version asked for, or a later one: the nearer the better.
    AtLeast(Version),
    /// An earlier version, or none that is known.
    Rest,
}

impl Fit {
    /// Of a server with `version`, where `wanted` is asked for.
    pub fn of(version: Option<Version>, wanted: Version) -> Self {
        match version {
            Some(version) if version >= wanted => Self::AtLeast(version),
            _ => Self::Rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn version(text: &str) -> Version {
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
            assert_eq!(text.parse::<Version>(), Err(Malformed), "{text:?}");
        }
    }

    #[test]
    fn the_same_comes_before_the_nearest_later_and_all_others_are_alike() {
        let of = |text: &str| Fit::of(Some(version(text)), version("1.32"));
        assert!(of("1.32") < of("1.33") && of("1.33") < of("1.34") && of("1.34") < of("2.0"));
        assert!(of("2.0") < Fit::Rest);
        assert_eq!(of("1.31"), Fit::Rest);
        assert_eq!(of("0.40"), Fit::Rest);
        assert_eq!(Fit::of(None, version("1.32")), Fit::Rest);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(major: u32, minor: u32) {
            let version = Version { major, minor };
            prop_assert_eq!(version.to_string().parse(), Ok(version));
        }

        #[test]
        fn no_text_makes_it_panic(text: String) {
            if let Ok(version) = text.parse::<Version>() {
                let plain = text.strip_prefix('v').unwrap_or(&text);
                prop_assert_eq!(version.to_string(), plain);
            }
        }
    }
}
