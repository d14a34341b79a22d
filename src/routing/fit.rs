//! How well a server's version fits the version that a client requests. Pure.

use crate::kube::version::KubernetesVersion;

/// How well a server's version fits the requested one. The best fit is the smallest value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// The requested version or a later one: the nearest is the best.
    AtLeast(KubernetesVersion),
    /// An earlier or unknown version.
    Rest,
}

impl Fit {
    /// The fit of a server with `version` to the requested version `wanted`.
    pub fn of(version: Option<KubernetesVersion>, wanted: KubernetesVersion) -> Self {
        match version {
            Some(version) if version >= wanted => Self::AtLeast(version),
            _ => Self::Rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> KubernetesVersion {
        text.parse().unwrap()
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
}
