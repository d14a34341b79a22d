//! What a kube-apiserver binary can do, by its own `--version=raw` and `--help`, and the flags that it gets. Pure.

use std::collections::BTreeMap;
use std::fmt;

/// From which 1.x on, and before which, those group versions are served that tests name and that not every version from
/// 1.20 on serves. A starting apiserver refuses `--runtime-config` with a group version that it does not know.
const SPANS: [(&str, u32, u32); 11] = [
    ("autoscaling/v2", 23, LAST),
    ("autoscaling/v2beta1", 0, 25),
    ("autoscaling/v2beta2", 0, 26),
    ("batch/v1beta1", 0, 25),
    ("certificates.k8s.io/v1beta1", 0, 22),
    ("coordination.k8s.io/v1beta1", 0, 22),
    ("discovery.k8s.io/v1beta1", 0, 25),
    ("events.k8s.io/v1beta1", 0, 25),
    ("extensions/v1beta1", 0, 22),
    ("policy/v1", 21, LAST),
    ("policy/v1beta1", 0, 25),
];
const LAST: u32 = u32::MAX;

/// All versions that the groups had from 1.20 on that tests switch on or off.
const VERSIONS: [(&str, &[&str]); 5] = [
    ("apps", &["v1"]),
    ("autoscaling", &["v1", "v2", "v2beta1", "v2beta2"]),
    ("batch", &["v1", "v1beta1"]),
    ("extensions", &["v1beta1"]),
    ("policy", &["v1", "v1beta1"]),
];

/// The version in which feature gates came that tests set.
const GATES_SINCE: [(&str, u32); 3] = [
    ("APIServerIdentity", 20),
    ("StorageVersionAPI", 20),
    ("UnknownVersionInteroperabilityProxy", 28),
];

/// What apiservers store, from the first 1.x on, in a version that those before the second cannot read.
const STORED_ANEW: [(&str, u32, u32); 2] =
    [("cronjobs", 25, 21), ("horizontalpodautoscalers", 25, 23)];

pub(super) fn all_versions(group: &str) -> impl Iterator<Item = &'static str> {
    let versions = VERSIONS.iter().filter(move |(name, _)| *name == group);
    versions.flat_map(|(_, versions)| versions.iter().copied())
}

/// What a test needs of each kube-apiserver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A flag, without its dashes.
    Flag(&'static str),
    /// A feature gate that can be set.
    Gate(&'static str),
    /// A feature gate that is on unless a test says otherwise.
    On(&'static str),
    /// A group version.
    Serves(&'static str),
    /// All are of its version.
    OneVersion,
    /// Reads what the others store of this resource.
    Reads(&'static str),
    /// A version of Kubernetes before 1.x.
    Before(u32),
    /// 1.x or later.
    Since(u32),
    /// A binary that was built with Go before 1.x.
    GoBefore(u32),
}

impl fmt::Display for Need {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(formatter, "--{name}"),
            Self::Gate(name) | Self::On(name) => write!(formatter, "the feature gate {name}"),
            Self::Serves(group_version) => write!(formatter, "{group_version}"),
            Self::OneVersion => write!(formatter, "others of its version"),
            Self::Reads(resource) => write!(formatter, "what newer ones store of {resource}"),
            Self::Before(minor) => write!(formatter, "what was removed or changed in 1.{minor}"),
            Self::Since(minor) => write!(formatter, "what came with 1.{minor}"),
            Self::GoBefore(minor) => write!(formatter, "what Go did before 1.{minor}"),
        }
    }
}

/// One `kube-apiserver`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// `v1.20.2`.
    pub version: String,
    minor: u32,
    go: u32,
    flags: Vec<String>,
    /// With their defaults.
    gates: BTreeMap<String, bool>,
}

/// What a server is to be started with.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// `--name=value`; each must be known.
    pub flags: Vec<String>,
    /// The same, left out where it is not known.
    pub optional: Vec<String>,
    /// `batch/v1=false`.
    pub runtime_config: Vec<String>,
    /// `APIServerIdentity=true`.
    pub gates: Vec<String>,
}

/// The gate of the apiserver's own mixed version proxy.
pub const NATIVE: &str = "UnknownVersionInteroperabilityProxy";

/// What it can be started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub flags: Vec<String>,
    /// What was wanted and this version cannot do.
    pub lacking: Vec<String>,
}

impl Abilities {
    /// `raw`: what `--version=raw` prints. `Err` for what is no complete kube-apiserver from 1.20 on.
    pub fn new(raw: &str, help: &str) -> Result<Self, String> {
        let field = |name: &str| {
            let (_, rest) = raw.split_once(&format!("{name}:\""))?;
            Some(rest.split_once('"')?.0)
        };
        let version = field("GitVersion").ok_or_else(|| format!("no version: {raw}"))?;
        let minor = minor(version.trim_start_matches('v'));
        let minor = minor.ok_or_else(|| format!("not a version of Kubernetes: {version}"))?;
        let go = field("GoVersion").and_then(minor_of_go);
        let abilities = Self {
            version: version.to_owned(),
            minor,
            go: go.ok_or_else(|| format!("no version of Go: {raw}"))?,
            flags: help.lines().filter_map(flag).map(str::to_owned).collect(),
            gates: help.lines().filter_map(gate).collect(),
        };
        // Others on k8s.io/apiserver have most of its flags.
        match abilities.has_flag("service-cluster-ip-range") {
            _ if minor < 20 => Err(format!("{version} is older than 1.20")),
            false => Err(format!("{version}, but not a complete kube-apiserver")),
            true => Ok(abilities),
        }
    }

    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// As if it were on by default.
    pub(super) fn turn_on(&mut self, gate: &str) {
        let known = self.gates.get_mut(gate);
        *known.unwrap_or_else(|| panic!("{} has no gate {gate}", self.version)) = true;
    }

    /// `1.20`.
    pub fn compatibility_version(&self) -> String {
        format!("1.{}", self.minor)
    }

    /// Beside these others.
    pub fn meets_beside<'a>(&self, need: Need, mut others: impl Iterator<Item = &'a Self>) -> bool {
        match need {
            Need::OneVersion => others.all(|other| self.minor == other.minor),
            Need::Reads(resource) => others.all(|other| self.reads(resource, other)),
            need => self.meets(need),
        }
    }

    fn reads(&self, resource: &str, other: &Self) -> bool {
        let mut anew = STORED_ANEW.iter().filter(|(name, ..)| *name == resource);
        anew.all(|&(_, stored, read)| other.minor < stored || self.minor >= read)
    }

    /// Alone.
    pub fn meets(&self, need: Need) -> bool {
        match need {
            Need::OneVersion | Need::Reads(_) => true,
            Need::Flag(name) => self.has_flag(name),
            Need::Gate(name) => self.gates.contains_key(name),
            Need::On(name) => self.gates.get(name) == Some(&true),
            Need::Serves(group_version) => self.serves(group_version),
            Need::Before(minor) => self.minor < minor,
            Need::Since(minor) => self.minor >= minor,
            Need::GoBefore(minor) => self.go < minor,
        }
    }

    /// What the table does not name is served by every version.
    pub fn serves(&self, group_version: &str) -> bool {
        let mut spans = SPANS.iter().filter(|(name, ..)| *name == group_version);
        spans.all(|&(_, from, before)| (from..before).contains(&self.minor))
    }

    /// The versions of a group that tests switch off.
    pub fn versions_of(&self, group: &str) -> Vec<&'static str> {
        let served = |version: &&str| self.serves(&format!("{group}/{version}"));
        all_versions(group).filter(served).collect()
    }

    /// The flags for what is wanted. The apiserver's own mixed version proxy is off unless it is asked for.
    pub fn plan(&self, wanted: &Wanted) -> Plan {
        let mut plan = Plan::default();
        for flag in &wanted.flags {
            match self.has_flag(name(flag)) {
                true => plan.flags.push(flag.clone()),
                false => plan.lacking.push(flag.clone()),
            }
        }
        let optional = wanted.optional.iter();
        let known = optional.filter(|flag| self.has_flag(name(flag)) && self.may(flag));
        plan.flags.extend(known.cloned());
        let config = self.filter(&wanted.runtime_config, Self::group_version, &mut plan);
        let mut gates = self.filter(&wanted.gates, Self::settable, &mut plan);
        let asked = gates.iter().any(|gate| gate.starts_with(NATIVE));
        if !asked && self.meets(Need::Gate(NATIVE)) {
            gates.push(format!("{NATIVE}=false"));
        }
        for (flag, values) in [("runtime-config", config), ("feature-gates", gates)] {
            if !values.is_empty() {
                plan.flags.push(format!("--{flag}={}", values.join(",")));
            }
        }
        plan
    }

    /// The `settings` that can be given: of each, `known` says whether it is known, else whether it is as wanted anyway.
    fn filter(
        &self,
        settings: &[String],
        known: fn(&Self, &str, bool) -> Result<(), bool>,
        plan: &mut Plan,
    ) -> Vec<String> {
        let mut given = Vec::new();
        for setting in settings.iter().flat_map(|settings| settings.split(',')) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, "true"));
            match known(self, name, value == "true") {
                Ok(()) => given.push(setting.to_owned()),
                Err(true) => {}
                Err(false) => plan.lacking.push(setting.to_owned()),
            }
        }
        given
    }

    fn group_version(&self, name: &str, on: bool) -> Result<(), bool> {
        match self.serves(name) {
            true => Ok(()),
            false => Err(!on),
        }
    }

    fn settable(&self, gate: &str, on: bool) -> Result<(), bool> {
        match self.gates.contains_key(gate) {
            true => Ok(()),
            // Not there yet, or there for good, and then no longer listed: which of both a version tells.
            false => Err(on == self.has_graduated(gate)),
        }
    }

    /// Gates that tests set begin as alpha or beta after 1.19, and are listed until they are on for good.
    fn has_graduated(&self, gate: &str) -> bool {
        GATES_SINCE
            .iter()
            .any(|(name, since)| *name == gate && self.minor >= *since)
    }

    /// A flag that `--help` names may still be refused, where its gate is off.
    fn may(&self, flag: &str) -> bool {
        name(flag) != "requestheader-uid-headers"
            || self.gates.get("RemoteRequestHeaderUID").copied() != Some(false)
    }

    fn has_flag(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag == name)
    }
}

/// `--name=value` without dashes and value.
fn name(flag: &str) -> &str {
    let flag = flag.trim_start_matches('-');
    flag.split_once('=').map_or(flag, |(name, _)| name)
}

/// The 1.x of `1.x.y`.
fn minor(version: &str) -> Option<u32> {
    let mut parts = version.split(['.', '-', '+']);
    (parts.next() == Some("1")).then_some(())?;
    parts.next()?.parse().ok()
}

fn minor_of_go(go: &str) -> Option<u32> {
    let version = go.split_whitespace().next()?.strip_prefix("go")?;
    // Release candidates are called go1.26rc1.
    let digits = version.strip_prefix("1.")?;
    let end = digits.find(|char: char| !char.is_ascii_digit());
    digits.get(..end.unwrap_or(digits.len()))?.parse().ok()
}

/// `      --name type   text`, or `  -v, --name …`: what begins further to the right is a text's next line.
fn flag(line: &str) -> Option<&str> {
    let text = line.trim_start();
    let indented = line.len() - text.len();
    let text = match text.split_once(", --") {
        Some((short, text)) if short.len() == 2 && short.starts_with('-') => text,
        _ => text.strip_prefix("--")?,
    };
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (indented <= 8).then_some(text.get(..end)?)
}

/// `Name=true|false (BETA - default=true)`, in later versions with `kube:` before it.
fn gate(line: &str) -> Option<(String, bool)> {
    let (before, state) = line.split_once("=true|false (")?;
    let name = before.rsplit([' ', '\t', ':']).next()?;
    let default = state.split_once("default=")?.1.starts_with("true");
    Some((name.to_owned(), default))
}

#[cfg(test)]
mod tests;
