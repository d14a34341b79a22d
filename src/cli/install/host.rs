//! Files of a node: which there are, and how they are replaced.
//!
//! kubelet takes every file in its directory of manifests for a pod. So a new one is written beside the configuration, on the
//! same file system, and put there in one step.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::cli::addresses::held;
use crate::config::{self, joined};
use crate::install::state::{APISERVER, CONFIG, LEAVING, State};
use crate::install::{self, DIRECTORY, MANIFESTS, Node};

/// What was there before the last change.
pub(super) const BEFORE: &str = "before";
/// What the last change has put there.
pub(super) const INSTALLED: &str = "installed";
/// Is there while a change has not ended.
const UNFINISHED: &str = "unfinished";
const LOCK: &str = ".lock";
/// Whose server is `controlPlaneEndpoint`.
const KUBECONFIGS: [&str; 2] = ["/etc/kubernetes/admin.conf", "/etc/kubernetes/kubelet.conf"];
const OTHERS: [&str; 2] = ["/etc/keepalived", "/etc/haproxy"];
/// As files of manifests end.
const ENDINGS: [&str; 4] = [".yaml", ".yml", ".json", ".manifest"];
const MAX_BYTES: u64 = 1 << 20;

/// Done, or one line that says why not.
pub(super) type Done = Result<(), String>;

/// A node, all of whose paths are below this one.
pub(super) struct Host(PathBuf);

impl Host {
    pub(super) fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }

    /// This machine itself, as it runs.
    pub(super) fn is_whole(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// A path of the node on this machine.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// In the proxy's own directory.
    fn own(&self, name: &str) -> PathBuf {
        self.path(DIRECTORY).join(name)
    }

    /// A file of a [`State`].
    fn file(&self, name: &str) -> PathBuf {
        match name {
            CONFIG | LEAVING => self.own(name),
            manifest => self.path(MANIFESTS).join(manifest),
        }
    }

    /// The paths and contents of files in a directory whose names end in one of these.
    fn texts(&self, directory: &str, endings: &[&str]) -> Vec<(String, String)> {
        let entries = fs::read_dir(self.path(directory)).into_iter().flatten();
        let names = entries.filter_map(|it| it.ok()?.file_name().into_string().ok());
        let is_wanted =
            |name: &String| !name.starts_with('.') && endings.iter().any(|end| name.ends_with(end));
        let mut names: Vec<_> = names.filter(is_wanted).collect();
        names.sort();
        let texts = names.into_iter().filter_map(|name| {
            let path = format!("{directory}/{name}");
            let text = text(&self.path(&path)).ok()??;
            Some((path, text))
        });
        texts.collect()
    }

    /// What is there now. `servers`: how many control plane nodes there are.
    pub(super) fn node(&self, servers: usize) -> Result<Node<'_>, String> {
        let path = self.file(APISERVER);
        let shown = path.display();
        if path.is_symlink() {
            return Err(format!(
                "{shown} is a symbolic link: what keeps the file that it names would undo the change; change it there"
            ));
        }
        let manifest = text(&path)?.ok_or_else(|| {
            format!("{shown}: no such file; is this a control plane node that kubeadm made?")
        })?;
        let mut others = self.texts(MANIFESTS, &ENDINGS);
        others.retain(|(path, _)| !path.ends_with(APISERVER));
        for directory in OTHERS {
            others.extend(self.texts(directory, &[".conf", ".cfg", ".sh"]));
        }
        let kubeconfigs = KUBECONFIGS.iter();
        let mut kubeconfigs = kubeconfigs.filter_map(|it| text(&self.path(it)).ok()?);
        Ok(Node {
            read: Box::new(|path: &Path| read(&self.path(path))),
            manifest,
            config: text(&self.own(CONFIG))?,
            addresses: self.is_whole().then(held).unwrap_or_default(),
            others,
            endpoint: kubeconfigs.find_map(|it| install::endpoint(&it)),
            servers,
            installed: self.kept(INSTALLED)?,
        })
    }

    /// What is kept in a directory of the proxy's own.
    pub(super) fn kept(&self, directory: &str) -> Result<Option<State>, String> {
        let kept = |name: &str| text(&self.own(directory).join(name));
        let Some(apiserver) = kept(APISERVER)? else {
            return Ok(None);
        };
        let mut pods = Vec::new();
        for (path, text) in self.texts(&format!("{DIRECTORY}/{directory}"), &ENDINGS) {
            let name = path.rsplit('/').next().unwrap_or_default();
            if name != APISERVER && name != CONFIG {
                pods.push((name.to_owned(), text));
            }
        }
        Ok(Some(State::new(kept(CONFIG)?, pods, apiserver)))
    }

    /// Held by the one call that changes this node, for as long as it lives.
    pub(super) fn alone(&self) -> Result<File, String> {
        make(&self.path(DIRECTORY))?;
        let path = self.own(LOCK);
        let file = File::create(&path).map_err(|error| failed(&path, &error))?;
        let locked = file.try_lock();
        locked.map_err(|_| "another install or uninstall runs on this node")?;
        Ok(file)
    }

    /// Whether files can be replaced here, before anything is: a file in which everything that will be written fits, several
    /// times, is put among the manifests. kubelet looks past a name with a dot.
    pub(super) fn prepare(&self) -> Done {
        let probe = self.file(".kube-interop-proxy-probe");
        let put = self.put(&probe, &" ".repeat(256 << 10), 0o600);
        let _ = fs::remove_file(&probe);
        put.map_err(|error| match error.kind() {
            ErrorKind::CrossesDevices => format!(
                "{DIRECTORY} and {MANIFESTS} are on two file systems: no manifest could be replaced in one step"
            ),
            _ => failed(&probe, &error),
        })
    }

    /// Every problem of a configuration and of the files that it names, as `check` finds them. With another root its paths are
    /// not those of this machine.
    pub(super) fn check(&self, config: &str) -> Done {
        if !self.is_whole() {
            return Ok(());
        }
        let checked = config::check_text(&self.own(CONFIG), config.to_owned());
        checked.map_err(|problems| joined(problems, "\n")).map(drop)
    }

    /// Keeps what is there in `before/`, unless a change that was broken off has kept what was there before it. On a node without
    /// a proxy what is there is what was there before: anything else is of a cluster that the node has left since.
    pub(super) fn keep(&self, state: &State) -> Done {
        if self.is_unfinished() && state.has_proxy()? {
            return Ok(());
        }
        let mut files = state.files().to_vec();
        files.push((UNFINISHED.to_owned(), String::new()));
        self.store(BEFORE, &files)
    }

    /// Replaces a directory of the proxy's own.
    fn store(&self, name: &str, files: &[(String, String)]) -> Done {
        let (new, kept) = (self.own(&format!(".{name}")), self.own(name));
        remove(&new)?;
        write_into(&new, files)?;
        remove(&kept)?;
        fs::rename(&new, &kept).map_err(|error| failed(&kept, &error))
    }

    /// The proxy runs as these files say.
    pub(super) fn done(&self, state: &State) -> Done {
        self.store(INSTALLED, state.files())?;
        self.finish()
    }

    /// A change was begun and has not ended.
    pub(super) fn is_unfinished(&self) -> bool {
        self.own(BEFORE).join(UNFINISHED).exists()
    }

    pub(super) fn finish(&self) -> Done {
        remove(&self.own(BEFORE).join(UNFINISHED))
    }

    /// Writes a file of a [`State`] in one step, with the mode that it had.
    pub(super) fn write(&self, name: &str, text: &str) -> Done {
        let path = self.file(name);
        let mode = fs::metadata(&path).map_or(0o600, |it| it.mode() & 0o777);
        let put = self.put(&path, text, mode);
        put.map_err(|error| failed(&path, &error))
    }

    pub(super) fn remove(&self, name: &str) -> Done {
        remove(&self.file(name))
    }

    fn put(&self, to: &Path, text: &str, mode: u32) -> Result<(), Error> {
        let new = self.own(".new");
        write_new(&new, text, mode)?;
        let put = fs::rename(&new, to);
        if put.is_err() {
            let _ = fs::remove_file(&new);
        }
        put?;
        // The change counts for the next start of the machine too.
        to.parent().map_or(Ok(()), |it| File::open(it)?.sync_all())
    }

    /// Takes the proxy's own directory away; what others put there stays.
    pub(super) fn clean_up(&self) -> Done {
        for name in [BEFORE, ".before", INSTALLED, ".installed", ".new"] {
            remove(&self.own(name))?;
        }
        remove(&self.own(LEAVING))?;
        remove(&self.own(LOCK))?;
        let directory = self.path(DIRECTORY);
        gone(&directory, fs::remove_dir(&directory))
    }
}

fn failed(path: &Path, error: &Error) -> String {
    format!("{}: {error}", path.display())
}

/// What became of removing something that need not have been there, or a directory in which others have put something.
fn gone(path: &Path, removed: Result<(), Error>) -> Done {
    match removed.map_err(|error| (error.kind(), failed(path, &error))) {
        Ok(()) | Err((ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty, _)) => Ok(()),
        Err((_, why)) => Err(why),
    }
}

/// Removes a file, or a directory with all that is in it, if it is there.
fn remove(path: &Path) -> Done {
    match path.is_dir() {
        true => gone(path, fs::remove_dir_all(path)),
        false => gone(path, fs::remove_file(path)),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let metadata = fs::metadata(path).map_err(|error| error.to_string())?;
    match metadata.is_file() && metadata.len() <= MAX_BYTES {
        true => fs::read(path).map_err(|error| error.to_string()),
        false => Err("is no file, or larger than 1 MiB".to_owned()),
    }
}

/// `None`: it is not there.
fn text(path: &Path) -> Result<Option<String>, String> {
    if matches!(fs::exists(path), Ok(false)) {
        return Ok(None);
    }
    let text = read(path).and_then(|it| String::from_utf8(it).map_err(|_| "not UTF-8 text".into()));
    let text = text.map_err(|why| format!("{}: {why}", path.display()));
    text.map(Some)
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let _ = fs::remove_file(path);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Makes the directory, and these files in it.
pub(super) fn write_into(directory: &Path, files: &[(String, String)]) -> Done {
    make(directory)?;
    for (name, text) in files {
        let path = directory.join(name);
        write_new(&path, text, 0o600).map_err(|error| failed(&path, &error))?;
    }
    Ok(())
}

fn make(directory: &Path) -> Done {
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(directory);
    made.map_err(|error| failed(directory, &error))
}
