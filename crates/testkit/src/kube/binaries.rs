//! Which kube-apiservers the tests run: v1.20.2 from the cache of `tests/build-kubernetes.sh`, or those that
//! [`VARIABLE`] names.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

use super::abilities::{Abilities, Need};
use crate::notes;

/// Paths with `:` between them; `1.20.2` stands for the cached one. `+GATE` behind one turns a feature gate on.
pub const VARIABLE: &str = "KUBE_INTEROP_APISERVERS";
const CACHED: &str = "1.20.2";

/// A kube-apiserver that can be started.
#[derive(Debug)]
pub struct Binary {
    pub(super) path: PathBuf,
    abilities: Abilities,
    /// The feature gates that the variable turns on.
    gates: Vec<String>,
}

impl Binary {
    /// For people.
    pub(super) fn name(&self) -> String {
        let gates = self.gates.iter().map(|gate| format!(" +{gate}"));
        let gates: String = gates.collect();
        format!("kube-apiserver {}{gates}", self.abilities.version)
    }

    /// `GATE=true` of those that the variable turns on, but for those that a test sets.
    pub(super) fn gates<'a>(&'a self, set: &'a [String]) -> impl Iterator<Item = String> + 'a {
        let is_set = |gate: &str| set.iter().any(|it| it.split('=').next() == Some(gate));
        let gates = self.gates.iter().filter(move |gate| !is_set(gate));
        gates.map(|gate| format!("{gate}=true"))
    }

    pub fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    /// Another program of this version if it is in the same directory, or else that of 1.20.2.
    pub fn beside(&self, program: &str) -> PathBuf {
        let path = self.path.with_file_name(program);
        match path.is_file() {
            true => path,
            false => cache().join(program),
        }
    }
}

/// Those that the servers of a test run in turn.
pub fn all() -> &'static [Binary] {
    static ALL: LazyLock<Vec<Binary>> = LazyLock::new(|| {
        let elements = elements(&given()).into_iter();
        let all: Vec<_> = elements.map(|(path, gates)| look_at(path, gates)).collect();
        let named: Vec<_> = all.iter().map(Binary::name).collect();
        notes::given(&named.join(" + "));
        all
    });
    &ALL
}

fn given() -> String {
    std::env::var(VARIABLE).unwrap_or_default()
}

/// The versions that the variable names, if these are several: the oldest first.
pub fn several() -> Vec<&'static Binary> {
    let mut versions: Vec<_> = all().iter().collect();
    versions.sort_by_key(|binary| binary.abilities.minor());
    versions.dedup_by_key(|binary| binary.abilities.minor());
    match versions.len() {
        1 => Vec::new(),
        _ => versions,
    }
}

/// Whether the variable names any.
pub(crate) fn are_given() -> bool {
    !given().is_empty()
}

/// Whether one of those that the variable names meets this. Tests without a kube-apiserver ask too: it needs none.
pub(crate) fn others_meet(need: Need) -> bool {
    are_given() && all().iter().any(|it| it.abilities.meets(need))
}

/// Each with the gates that it turns on.
fn elements(given: &str) -> Vec<(PathBuf, Vec<String>)> {
    let element = |element: &str| {
        // A `+` in a directory's name is part of it.
        let (directory, file) = element.split_at(element.rfind('/').map_or(0, |slash| slash + 1));
        let mut parts = file.split('+');
        let path = match format!("{directory}{}", parts.next().unwrap_or_default()) {
            path if path == CACHED => cached_path(),
            path => PathBuf::from(path),
        };
        (path, parts.map(str::to_owned).collect())
    };
    let given = given.split(':').map(str::trim).filter(|it| !it.is_empty());
    let mut elements: Vec<_> = given.map(element).collect();
    if elements.is_empty() {
        elements.push((cached_path(), Vec::new()));
    }
    elements
}

/// v1.20.2, whatever the variable says.
pub fn cached() -> &'static Binary {
    static CACHED: OnceLock<Binary> = OnceLock::new();
    CACHED.get_or_init(|| look_at(cached_path(), Vec::new()))
}

/// The binary of the server with this host name: those of one test, which are those of one directory, take them in
/// turn, and each keeps its own.
pub(super) fn of(dir: &Path, host_name: &str) -> &'static Binary {
    static HOSTS: LazyLock<Mutex<HashMap<PathBuf, Vec<String>>>> = LazyLock::new(Mutex::default);
    let mut hosts = HOSTS.lock().unwrap_or_else(PoisonError::into_inner);
    let turn = turn(hosts.entry(dir.to_owned()).or_default(), host_name);
    let all = all();
    &all[turn % all.len()]
}

fn turn(hosts: &mut Vec<String>, host_name: &str) -> usize {
    let known = hosts.iter().position(|host| host == host_name);
    known.unwrap_or_else(|| {
        hosts.push(host_name.to_owned());
        hosts.len() - 1
    })
}

fn cached_path() -> PathBuf {
    cache().join("kube-apiserver")
}

fn look_at(path: PathBuf, gates: Vec<String>) -> Binary {
    if !path.is_file() {
        let what = format!("kube-apiserver ({})", path.display());
        let remedy = match path == cached_path() {
            true => "run tests/build-kubernetes.sh".to_owned(),
            false => format!("{VARIABLE} names it: paths with \":\" between them, or {CACHED}"),
        };
        crate::missing(&what, &remedy);
    }
    let said = |flag: &str| {
        let output = Command::new(&path).arg(flag).output();
        let output =
            output.unwrap_or_else(|error| panic!("{} does not run: {error}", path.display()));
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let abilities = Abilities::new(&said("--version=raw"), &said("--help"));
    let mut abilities = abilities.unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    for gate in &gates {
        abilities.turn_on(gate);
    }
    Binary {
        path,
        abilities,
        gates,
    }
}

/// Whether the test that calls it is skipped, because a kube-apiserver that is given lacks something. It is then
/// counted, by its name. v1.20.2 alone lacks nothing that a test needs.
pub fn lacks(needs: &[Need]) -> bool {
    let reason = what_is_lacking(needs);
    if let Some(reason) = &reason {
        notes::skipped(reason);
    }
    reason.is_some()
}

/// The same for a part of the test that calls it. The test is not counted as skipped.
pub fn lacks_for_a_part(needs: &[Need]) -> bool {
    let reason = what_is_lacking(needs);
    if let Some(reason) = &reason {
        notes::part_skipped(reason);
    }
    reason.is_some()
}

fn what_is_lacking(needs: &[Need]) -> Option<String> {
    let all = all();
    let (binary, need) = all.iter().find_map(|binary| {
        let others = || all.iter().map(Binary::abilities);
        let meets = |need: &&Need| binary.abilities.meets_beside(**need, others());
        let need = needs.iter().find(|need| !meets(need))?;
        Some((binary, need))
    })?;
    let reason = format!("{} lacks {need}", binary.name());
    let given = |other: &Binary| other.path != cached_path() || !other.gates.is_empty();
    let given = all.iter().any(given);
    assert!(given, "not for this alone: {reason}");
    Some(reason)
}

/// Where `tests/build-kubernetes.sh` puts its results.
pub fn cache() -> PathBuf {
    caches().join("kubernetes-1.20.2")
}

/// The cache for everything that is built only once.
pub fn caches() -> PathBuf {
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir),
        _ => PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache"),
    };
    base.join("kube-interop-proxy")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{cached_path, elements, turn};

    #[test]
    fn the_variable_names_paths_and_the_cached_one_and_their_gates() {
        let cached = || (cached_path(), Vec::new());
        assert_eq!(elements(""), [cached()]);
        assert_eq!(elements(" : "), [cached()]);
        let new = PathBuf::from("/opt/1.36+x/kube-apiserver");
        let both = elements("/opt/1.36+x/kube-apiserver: 1.20.2");
        assert_eq!(both, [(new.clone(), Vec::new()), cached()]);
        let gates = ["APIServerIdentity", "StorageVersionAPI"].map(str::to_owned);
        let with_gates =
            elements("1.20.2+APIServerIdentity+StorageVersionAPI:/opt/1.36+x/kube-apiserver+Other");
        let expected = [
            (cached_path(), gates.to_vec()),
            (new, vec!["Other".to_owned()]),
        ];
        assert_eq!(with_gates, expected);
    }

    #[test]
    fn servers_take_turns_and_keep_theirs() {
        let mut hosts = Vec::new();
        let turns = ["a", "b", "a", "c", "b"].map(|host| turn(&mut hosts, host));
        assert_eq!(turns, [0, 1, 0, 2, 1]);
    }
}
