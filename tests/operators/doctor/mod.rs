//! `check --live`: a running pair of proxies is healthy, and for each of many misconfigurations it reports the cause
//! and nothing else.

mod addresses;
mod changes_nothing;
mod etcd;
mod files;
mod others;
mod real;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_yaml::Value;

use testkit::cluster::{Cluster, Ground, binary};
use testkit::double::v1_20;
use testkit::etcd::{Etcd, EtcdOptions};
use testkit::pki::{LeafOptions, Pki, SERVER_NAME};
use testkit::proxy::{Proxy, ProxyOptions};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// The whole of it, whatever hangs.
const LIMIT: Duration = Duration::from_secs(30);
/// An object that every kube-apiserver has in etcd; doubles have none.
const API_SERVICE: (&str, &str) = (
    "/registry/apiregistration.k8s.io/apiservices/v1.",
    r#"{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1."},"spec":{}}"#,
);

/// A PKI of which nothing is about to expire.
fn lasting(dir: &Path) -> Pki {
    let mut pki = Pki::new(dir);
    for (name, cn) in [
        ("ca", "kubernetes"),
        ("front-proxy-ca", "front-proxy-ca"),
        ("etcd-ca", "etcd-ca"),
    ] {
        pki.add_ca_like(name, &LeafOptions::client(cn).for_another(2 * YEAR));
    }
    let client = |cn: &str| LeafOptions::client(cn).for_another(YEAR);
    pki.leaf("apiserver", "ca", &serving(&[SERVER_NAME]));
    pki.leaf("b-serving", "ca", &serving(&[SERVER_NAME]));
    pki.leaf("etcd-client", "etcd-ca", &client("etcd-client"));
    for (name, cn) in [
        ("front-proxy-client", "front-proxy-client"),
        ("not-a-peer", "someone-else"),
    ] {
        pki.leaf(name, "front-proxy-ca", &client(cn));
    }
    let admin = client("kubernetes-admin").org("system:masters");
    pki.leaf("admin", "ca", &admin);
    pki.leaf("rogue", "rogue-ca", &client("front-proxy-client"));
    pki
}

/// A serving certificate for these names.
fn serving(names: &[&str]) -> LeafOptions {
    LeafOptions::server("kube-apiserver", names).for_another(YEAR)
}

async fn ground() -> Ground {
    let dir = tempfile::tempdir().unwrap();
    let pki = lasting(&dir.path().join("pki"));
    let etcd = Etcd::start_with(dir.path(), &pki, EtcdOptions::default()).await;
    let (key, value) = API_SERVICE;
    etcd.client().await.put(key, value, None).await.unwrap();
    Ground { dir, pki, etcd }
}

/// A running pair of doubles with proxies; live keys stay for a minute.
async fn pair() -> Cluster {
    pair_on(ground().await).await
}

async fn pair_on(ground: Ground) -> Cluster {
    let (cert, key) = (
        ground.pki.file("b-serving.crt"),
        ground.pki.file("b-serving.key"),
    );
    Cluster::on(ground, v1_20(), |id, options: ProxyOptions| {
        let options = options.set("peer.leaseTTL", "60s");
        match id {
            "b" => options
                .set("serving.certFile", &cert)
                .set("serving.keyFile", &key),
            _ => options,
        }
    })
    .await
}

/// The configuration that a proxy runs with.
fn file_of(proxy: &Proxy) -> Value {
    let text = std::fs::read_to_string(proxy.config_file()).unwrap();
    serde_yaml::from_str(&text).unwrap()
}

/// What `check --live` said.
#[derive(Debug)]
struct Said {
    code: Option<i32>,
    lines: Vec<String>,
}

/// Runs `check --live` with a configuration in which some keys, given as `a.b: YAML`, are changed.
async fn doctor(dir: &Path, config: &Value, changes: &[(&str, String)]) -> Said {
    let mut config = config.clone();
    for (key, value) in changes {
        let mut place = &mut config;
        for part in key.split('.') {
            place = &mut place[part];
        }
        *place = serde_yaml::from_str(value).unwrap();
    }
    let file = tempfile::Builder::new()
        .prefix("check-")
        .suffix(".yaml")
        .tempfile_in(dir)
        .unwrap();
    std::fs::write(file.path(), serde_yaml::to_string(&config).unwrap()).unwrap();
    let path: PathBuf = file.path().to_owned();
    let started = Instant::now();
    // Doubles answer meanwhile.
    let output = tokio::task::spawn_blocking(move || {
        let arguments = ["check", "--live", "--config"];
        let mut command = Command::new(binary());
        command.args(arguments).arg(path).output().unwrap()
    })
    .await
    .unwrap();
    let took = started.elapsed();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(took < LIMIT, "{took:?}\n{text}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{text}");
    let lines: Vec<_> = text.lines().map(without_code).collect();
    assert!(!text.contains("PRIVATE KEY"), "{text}");
    Said {
        code: output.status.code(),
        lines,
    }
}

/// A finding's line without its code, which `docs/findings.md` explains. The last line is none.
fn without_code(line: &str) -> String {
    let Some((level, (code, rest))) = line
        .split_once(" KIP-")
        .map(|(level, rest)| (level.trim_end(), rest.split_at(3)))
    else {
        assert!(
            line.ends_with("problems") || line.ends_with("problem"),
            "{line}"
        );
        return line.to_owned();
    };
    let page = crate::documents::root().join("docs/findings.md");
    let page = std::fs::read_to_string(page).unwrap();
    let explained = format!("\n## KIP-{code}\n\n**{level}**: ");
    assert!(page.contains(&explained), "{line}");
    let link = format!("; see docs/findings.md#kip-{code}");
    assert_eq!(rest.contains("; do: "), rest.ends_with(&link), "{line}");
    format!("{level:<8}{}", rest.trim_start())
}

/// Its name, what is changed in the file, and what is told then: problems, warnings.
type Case<'a> = (
    &'a str,
    Vec<(&'a str, String)>,
    Vec<Vec<&'a str>>,
    Vec<Vec<&'a str>>,
);

/// Checks A's file with each change, after it was healthy without.
async fn told(cluster: &Cluster, cases: Vec<Case<'_>>) {
    let config = file_of(&cluster.proxy_a);
    let dir = cluster.ground.dir.path();
    doctor(dir, &config, &[]).await.is_healthy();
    for (case, changes, problems, warnings) in cases {
        let said = doctor(dir, &config, &changes).await;
        let problems: Vec<_> = problems.iter().map(Vec::as_slice).collect();
        let warnings: Vec<_> = warnings.iter().map(Vec::as_slice).collect();
        said.is(case, &problems, &warnings);
    }
}

impl Said {
    fn of(&self, level: &str) -> Vec<&str> {
        let lines = self.lines.iter().map(String::as_str);
        lines.filter(|line| line.starts_with(level)).collect()
    }

    fn all(&self) -> String {
        self.lines.join("\n")
    }

    /// Nothing is wrong.
    #[track_caller]
    fn is_healthy(&self) {
        assert_eq!(self.of("problem "), [""; 0], "{}", self.all());
        assert_eq!(self.of("warning "), [""; 0], "{}", self.all());
        assert_eq!(self.code, Some(0), "{}", self.all());
        let last = self.lines.last().unwrap();
        assert!(last.ends_with(" ok, 0 warnings, 0 problems"), "{last}");
    }

    /// Exactly these problems and warnings are told, each by its beginning and what else is in its line, and each says
    /// what to do.
    #[track_caller]
    fn is(&self, case: &str, problems: &[&[&str]], warnings: &[&[&str]]) {
        for (level, expected) in [("problem ", problems), ("warning ", warnings)] {
            let mut left = self.of(level);
            for words in expected {
                let fits = |line: &str| {
                    let line = &line[level.len()..];
                    line.starts_with(words[0]) && words.iter().all(|word| line.contains(word))
                };
                let Some(at) = left.iter().position(|line| fits(line)) else {
                    panic!("{case}: no {level}line with {words:?}\n{}", self.all());
                };
                let line = left.remove(at);
                assert!(line.contains("; do: "), "{case}: {line}");
                println!("{case:<50} {line}");
            }
            assert_eq!(left, [""; 0], "{case}: more than that\n{}", self.all());
        }
        let code = i32::from(!problems.is_empty());
        assert_eq!(self.code, Some(code), "{case}\n{}", self.all());
    }
}
