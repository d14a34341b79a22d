//! The image and the Debian package, as the scripts in `deploy/release` make them: the same bytes each time, an image that runs
//! confined, a package of which nothing stays.
//!
//! Made of the program that cargo has built for the tests, or of what `deploy/release/program.sh` has built, if
//! `KUBE_INTEROP_PROXY_DIST` names the directory.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use testkit::cluster::{Ground, binary};
use testkit::double::v1_20;
use testkit::missing;
use testkit::proxy::{Proxy, ProxyOptions, Until};

const REMEDY: &str = "run tests/install.sh --tests";
/// What the scripts are told, in place of asking git.
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TIME: &str = "1700000000";
const MIB: u64 = 1 << 20;

/// Runs a command to its end, which must be good; its output.
#[track_caller]
fn done(command: &mut Command) -> String {
    let name = command.get_program().to_string_lossy().into_owned();
    let Ok(output) = command.output() else {
        missing(&name, REMEDY);
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text.into_owned()
}

/// What the tool for licences says of this target.
fn licenses() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tool = Command::new(root.join("deploy/release/licenses.py"));
    done(tool.arg("x86_64-unknown-linux-gnu").current_dir(root))
}

#[test]
fn the_licences_of_all_libraries_are_told_with_their_texts() {
    let told = licenses();
    // C libraries in crates, what is in ring, and what comes with the compiler.
    for part in [
        "libmimalloc-sys 0.1.",
        ": c_src/mimalloc/",
        "Microsoft Corporation",
        ": src/zlib-ng/LICENSE.md",
        "Jean-loup Gailly and Mark Adler",
        ": LICENSE-BoringSSL",
        "the fiat-crypto authors",
        "Copyright notices for The Rust Standard Library",
    ] {
        assert!(told.contains(part), "{part}");
    }
    // Every crate that is listed has a text, and the crates of tests are not in it.
    let (listed, texts) = told.split_once("\n\n=====").unwrap();
    let crates = listed.lines().filter_map(|line| line.strip_prefix("  "));
    let mut count = 0;
    for (name, _) in crates.filter_map(|line| line.split_once(": ")) {
        let named = format!("\n{name}: ");
        assert!(
            texts.contains(&named) || name == "Rust's standard library",
            "{name}"
        );
        count += 1;
    }
    assert!(count > 150, "{count}");
    assert!(
        !listed.contains("  proptest ") && !listed.contains("  criterion "),
        "{listed}"
    );
}

/// The program and its SBOM, and where packages of them go.
struct Material {
    dir: TempDir,
    from: PathBuf,
    /// It is that of a release.
    release: bool,
}

impl Material {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        if let Some(dist) = std::env::var_os("KUBE_INTEROP_PROXY_DIST") {
            let (from, release) = (PathBuf::from(dist), true);
            return Self { dir, from, release };
        }
        let from = dir.path().join("from");
        std::fs::create_dir(&from).unwrap();
        let program = from.join("kube-interop-proxy");
        let mut strip = Command::new("objcopy");
        done(strip.arg("--strip-debug").arg(binary()).arg(program));
        std::fs::write(from.join("sbom.cdx.json"), "{}").unwrap();
        std::fs::write(from.join("third-party.txt"), licenses()).unwrap();
        Self {
            dir,
            from,
            release: false,
        }
    }

    /// What this script makes, twice the same; with the file's name.
    fn made_by(&self, script: &str, name: &str) -> PathBuf {
        let files = ["first", "second"].map(|time| {
            let file = self.dir.path().join(format!("{time}-{name}"));
            let root = Path::new(env!("CARGO_MANIFEST_DIR"));
            let mut command = Command::new(root.join("deploy/release").join(script));
            command.arg("--from").arg(&self.from).arg("--to").arg(&file);
            command
                .env("KUBE_INTEROP_PROXY_COMMIT", COMMIT)
                .env("SOURCE_DATE_EPOCH", TIME)
                // The bytes of a test need not be few.
                .env("DPKG_DEB_COMPRESSOR_TYPE", "gzip")
                .env("DPKG_DEB_COMPRESSOR_LEVEL", "1");
            done(&mut command);
            file
        });
        let [first, second] = files.each_ref().map(|file| std::fs::read(file).unwrap());
        assert!(first == second, "{script} made different bytes");
        let [first, _] = files;
        first
    }
}

/// An unpacked image.
struct Image {
    config: Value,
    root: PathBuf,
}

impl Image {
    fn unpack(archive: &Path, to: &Path) -> Self {
        let parts = to.join("parts");
        std::fs::create_dir(&parts).unwrap();
        let mut tar = Command::new("tar");
        done(tar.arg("-xf").arg(archive).arg("-C").arg(&parts));
        let read = |name: &str| -> Value {
            serde_json::from_slice(&std::fs::read(parts.join(name)).unwrap()).unwrap()
        };
        let manifest = &read("manifest.json")[0];
        let root = to.join("bundle/rootfs");
        std::fs::create_dir_all(&root).unwrap();
        for layer in manifest["Layers"].as_array().unwrap() {
            let layer = parts.join(layer.as_str().unwrap());
            let mut tar = Command::new("tar");
            done(tar.arg("-xf").arg(layer).arg("-C").arg(&root));
        }
        let config = read(manifest["Config"].as_str().unwrap());
        Self { config, root }
    }
}

/// The seccomp profile that podman and buildah use, which is Docker's, as runc reads it: for a process without capabilities.
fn seccomp() -> Value {
    let file = "/usr/share/containers/seccomp.json";
    let Ok(text) = std::fs::read(file) else {
        missing(file, REMEDY);
    };
    let profile: Value = serde_json::from_slice(&text).unwrap();
    let empty = |value: &Value| value.as_array().is_none_or(Vec::is_empty);
    let holds = |rule: &&Value| {
        let arches = &rule["includes"]["arches"];
        let here = empty(arches) || arches.as_array().unwrap().contains(&json!("amd64"));
        here && empty(&rule["includes"]["caps"])
    };
    let rules = profile["syscalls"].as_array().unwrap();
    let rules = rules.iter().filter(holds).map(|rule| {
        let mut rule = rule.clone();
        let fields = rule.as_object_mut().unwrap();
        fields.retain(|name, value| {
            let known = ["names", "action", "args", "errnoRet"].contains(&name.as_str());
            known && !value.is_null()
        });
        rule
    });
    json!({
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": rules.collect::<Vec<_>>(),
    })
}

/// What runc is told: as little as a container of a pod can have. `shared` is seen in it, at the same place.
fn bundle(image: &Value, shared: &Path) -> Value {
    let config = &image["config"];
    let user = config["User"].as_str().unwrap();
    let (uid, gid) = user.split_once(':').unwrap();
    let (uid, gid): (u32, u32) = (uid.parse().unwrap(), gid.parse().unwrap());
    assert_ne!(uid, 0);
    let program = config["Entrypoint"][0].as_str().unwrap();
    let namespaces = ["pid", "ipc", "uts", "mount", "cgroup"].map(|name| json!({"type": name}));
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": uid, "gid": gid},
            "args": [program, "@COMMAND@", "--config", "@CONFIG@"],
            "env": config["Env"],
            "cwd": config["WorkingDir"],
            "capabilities": {},
            "noNewPrivileges": true,
        },
        "root": {"path": "rootfs", "readonly": true},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
            {"destination": shared, "type": "none", "source": shared, "options": ["bind", "ro"]},
        ],
        "linux": {"namespaces": namespaces, "seccomp": seccomp()},
    })
}

/// A program that runs the image's program in a container, as it is called itself: COMMAND --config FILE.
fn contained(bundle: &Path, template: &Value) -> PathBuf {
    std::fs::write(bundle.join("template.json"), template.to_string()).unwrap();
    let script = bundle.join("contained");
    let (here, state) = (bundle.display(), bundle.join("state"));
    let text = format!(
        "#!/bin/sh\nset -e\n\
         sed \"s|@COMMAND@|$1|; s|@CONFIG@|$3|\" {here}/template.json >{here}/config.json\n\
         exec runc --root {} run --bundle {here} \"proxy-$$\"\n",
        state.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    script
}

/// As for the files of a node whose group the container has: user 65532 may read them.
fn readable(path: &Path) {
    let mut chmod = Command::new("chmod");
    done(chmod.args(["-R", "a+rX"]).arg(path));
}

#[track_caller]
fn root() {
    let user = done(Command::new("id").arg("-u"));
    if user.trim() != "0" {
        missing(
            "runc for this user",
            "run the tests as root: sudo -E cargo test",
        );
    }
    done(Command::new("runc").arg("--version"));
}

#[tokio::test]
async fn the_image_serves_without_any_privilege() {
    root();
    let material = Material::new();
    let archive = material.made_by("image.sh", "image.tar");
    let image = Image::unpack(&archive, material.dir.path());
    let labels = &image.config["config"]["Labels"];
    assert_eq!(labels["org.opencontainers.image.revision"], COMMIT);
    let version = &labels["org.opencontainers.image.version"];
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let doc = image.root.join("usr/share/doc/kube-interop-proxy");
    let bom = std::fs::read_to_string(doc.join("sbom.cdx.json")).unwrap();
    let licences = std::fs::read_to_string(doc.join("third-party.txt")).unwrap();
    assert!(licences.contains("\n  rustls 0.23."), "{licences}");
    if material.release {
        assert!(std::fs::metadata(&archive).unwrap().len() < 40 * MIB);
        assert!(bom.contains("\"CycloneDX\"") && bom.contains("\"pingora-core\""));
    }

    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let shared = ground.dir.path();
    std::fs::set_permissions(shared, PermissionsExt::from_mode(0o755)).unwrap();
    readable(ground.pki.dir());
    let template = bundle(&image.config, shared);
    let program = contained(&material.dir.path().join("bundle"), &template);
    let endpoint = ground.etcd.endpoint();
    let options = ProxyOptions::new(&program, shared, &ground.pki, double.addr(), &endpoint);
    let mut proxy = Proxy::start(options.server_id("a").until(Until::Ready)).await;

    let admin = proxy.client(&ground.pki).cert("admin");
    for client in [admin.http1(), admin.http2()] {
        assert_eq!(client.get("/api/v1/namespaces").await.code(), 200);
        assert_eq!(client.get("/apis/example.org/v1/things").await.code(), 404);
    }
    confined(&mut proxy);
    let mut check = Command::new(&program);
    let said = done(check.args(["check", "--config"]).arg(proxy.config_file()));
    assert!(said.contains("no problems"), "{said}");
    let ended = proxy.terminate().await;
    assert_eq!(ended.code(), Some(0), "{}", proxy.log_tail());
}

/// What the kernel says of the program in the container, the only child of `runc run`.
#[track_caller]
fn confined(proxy: &mut Proxy) {
    let runc = proxy.process().pid();
    let children = format!("/proc/{runc}/task/*/children");
    let pids = done(Command::new("sh").arg("-c").arg(format!("cat {children}")));
    let pid = pids.split_whitespace().next().expect("a child of runc");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().split_whitespace().next()
    };
    assert_eq!(field("Name:"), Some("kube-interop-pr"));
    assert_eq!(field("Uid:"), Some("65532"));
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(field(set), Some("0000000000000000"), "{set}");
    }
    assert_eq!(field("NoNewPrivs:"), Some("1"));
    // A filter.
    assert_eq!(field("Seccomp:"), Some("2"));
    let mounts = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
    let root = mounts
        .lines()
        .find(|line| line.split(' ').nth(4) == Some("/"));
    let options = root.and_then(|line| line.split(' ').nth(5)).unwrap();
    assert!(options.split(',').any(|it| it == "ro"), "{options}");
}

/// An empty file system with dpkg's database.
struct System {
    root: PathBuf,
    log: PathBuf,
}

impl System {
    fn new(dir: &Path) -> Self {
        let root = dir.join("root");
        for path in ["var/lib/dpkg/info", "var/lib/dpkg/updates"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        std::fs::write(root.join("var/lib/dpkg/status"), "").unwrap();
        let log = dir.join("dpkg.log");
        Self { root, log }
    }

    /// `fakeroot`: nobody needs to be root for it. Where dpkg is told to leave out documents, here it does not.
    fn dpkg(&self, arguments: &[&str]) {
        let mut command = Command::new("fakeroot");
        command.arg("dpkg");
        command.arg(format!("--root={}", self.root.display()));
        command.arg(format!("--log={}", self.log.display()));
        command.args(["--force-script-chrootless", "--force-depends"]);
        command.arg("--path-include=/usr/share/*").args(arguments);
        done(&mut command);
    }

    /// All files but dpkg's own.
    fn files(&self) -> BTreeSet<String> {
        let mut find = Command::new("find");
        let find = find.arg(&self.root).args(["-not", "-type", "d"]);
        let files = done(find.args(["-not", "-path", "*/var/lib/dpkg/*", "-printf", "/%P\\n"]));
        files.lines().map(str::to_owned).collect()
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.root.join(path)).unwrap()
    }
}

#[test]
fn the_debian_package_is_installed_and_purged_without_a_trace() {
    let material = Material::new();
    let package = material.made_by("deb.sh", "package.deb");
    let package = package.to_str().unwrap();
    let system = System::new(material.dir.path());
    system.dpkg(&["--install", package]);
    let expected = [
        "/lib/systemd/system/kube-interop-proxy.service",
        "/usr/bin/kube-interop-proxy",
        "/usr/share/bash-completion/completions/kube-interop-proxy",
        "/usr/share/doc/kube-interop-proxy/changelog.gz",
        "/usr/share/doc/kube-interop-proxy/copyright",
        "/usr/share/doc/kube-interop-proxy/examples/config.example.yaml",
        "/usr/share/doc/kube-interop-proxy/examples/proxy.yaml",
        "/usr/share/doc/kube-interop-proxy/sbom.cdx.json",
        "/usr/share/doc/kube-interop-proxy/third-party.txt",
        "/usr/share/fish/vendor_completions.d/kube-interop-proxy.fish",
        "/usr/share/lintian/overrides/kube-interop-proxy",
        "/usr/share/man/man1/kube-interop-proxy.1.gz",
        "/usr/share/zsh/vendor-completions/_kube-interop-proxy",
    ];
    assert_eq!(system.files(), expected.map(str::to_owned).into());

    let program = system.root.join("usr/bin/kube-interop-proxy");
    let said = done(Command::new(&program).arg("version"));
    assert!(said.contains(env!("CARGO_PKG_VERSION")), "{said}");
    assert!(!material.release || !said.contains("unknown"), "{said}");
    let unit = system.read("lib/systemd/system/kube-interop-proxy.service");
    let start = "\nExecStart=/usr/bin/kube-interop-proxy run ";
    assert!(
        unit.contains(start) && !unit.contains("/usr/local"),
        "{unit}"
    );
    let control = done(Command::new("dpkg-deb").args(["--field", package, "Depends"]));
    assert!(control.contains("libc6 (>= "), "{control}");

    // What `systemctl enable` makes, and the operator's configuration.
    let wants = system
        .root
        .join("etc/systemd/system/multi-user.target.wants");
    std::fs::create_dir_all(&wants).unwrap();
    let enabled = wants.join("kube-interop-proxy.service");
    std::os::unix::fs::symlink("/lib/systemd/system/kube-interop-proxy.service", enabled).unwrap();
    let own = "/etc/kubernetes/kube-interop-proxy/proxy.yaml";
    let file = system.root.join(&own[1..]);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, "").unwrap();
    system.dpkg(&["--purge", "kube-interop-proxy"]);
    assert_eq!(system.files(), [own.to_owned()].into());
    assert!(!system.root.join("usr/share").exists());
}

#[test]
fn lintian_finds_no_error_and_no_warning_in_the_debian_package() {
    let material = Material::new();
    let package = material.made_by("deb.sh", "package.deb");
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on=error,warning"]);
    done(lintian.arg(&package));
}

#[test]
fn bash_completes_commands_and_options() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/debian/completion.bash");
    let complete = |words: &[&str]| {
        let script = "source \"$0\"; COMP_WORDS=(kube-interop-proxy \"$@\"); COMP_CWORD=$#; \
                      _kube__interop__proxy kube-interop-proxy \"${!#}\" \"${COMP_WORDS[$#-1]}\"; \
                      echo \"${COMPREPLY[*]}\"";
        let mut bash = Command::new("bash");
        let said = done(bash.arg("-c").arg(script).arg(&file).args(words));
        said.trim().to_owned()
    };
    assert_eq!(complete(&["st"]), "status");
    assert_eq!(complete(&["check", "--li"]), "--live");
    assert_eq!(complete(&["status", "--output", "j"]), "json");
}
