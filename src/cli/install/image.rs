//! The proxy's image, as the node's containerd has it.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::io::{Error, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use super::host::Done;

/// containerd's: without it `ctr` is there for nothing, as with CRI-O.
const SOCKET: &str = "/run/containerd/containerd.sock";

/// Looks for an image before a pod of it takes anything's place; one of a registry is fetched by kubelet. Without `ctr`
/// nothing can be said.
pub(super) fn is_there(name: &str) -> Done {
    // A runtime that hangs must not hold up the renewal of the lock.
    let listed = ctr(&["--timeout", "5s"], &["list".as_ref(), "--quiet".as_ref()]);
    let listed = match listed {
        Ok(output) if output.status.success() => output.stdout,
        Ok(output) if Path::new(SOCKET).exists() => {
            return Err(told("ctr lists no images", &output));
        }
        Ok(_) | Err(_) => Vec::new(),
    };
    // Docker brings a ctr too, and has its images elsewhere: none is listed.
    if listed.is_empty() || is_among(name, &String::from_utf8_lossy(&listed)) {
        return Ok(());
    }
    let advice = match name.contains('/') {
        true => "kubelet has not fetched it yet; `crictl pull` does",
        false => "bring it here with --image-archive FILE",
    };
    Err(format!("this node has no image {name}: {advice}"))
}

/// Each is listed with a registry and a tag. A digest says all.
fn is_among(name: &str, listed: &str) -> bool {
    let name = name.split_once('@').map_or(name, |(_, digest)| digest);
    let last = name.rsplit('/').next().unwrap_or(name);
    let name = &match last.contains(':') {
        true => name.to_owned(),
        false => format!("{name}:latest"),
    };
    listed.lines().any(|line| {
        let line = line.split_once('@').map_or(line, |(_, digest)| digest);
        let registries = ["", "docker.io/", "docker.io/library/"];
        let mut names = registries.iter().map(|it| line.strip_prefix(it));
        names.any(|it| it == Some(name))
    })
}

/// A command about images of containerd.
fn ctr(options: &[&str], arguments: &[&OsStr]) -> Result<Output, Error> {
    let mut command = Command::new("ctr");
    command.args(options);
    command.args(["--namespace", "k8s.io", "images"]);
    // Ctrl-C is for the caller, which would take a `ctr` that was ended for one that cannot tell.
    command.process_group(0);
    command.args(arguments).output()
}

fn told(what: impl Display, output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    format!("{what}: {}", said.trim())
}

/// Whether an archive can be read, before anybody is asked whether it is wanted.
pub(super) fn is_readable(archive: &Path) -> Done {
    let read = File::open(archive).and_then(|mut file| file.read(&mut [0]));
    let failed = |error| format!("--image-archive {}: {error}", archive.display());
    read.map(drop).map_err(failed)
}

pub(super) fn import(archive: &Path) -> Done {
    let name = archive.display();
    match ctr(&[], &["import".as_ref(), archive.as_ref()]) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(told(format_args!("ctr cannot import {name}"), &output)),
        Err(_) => Err(format!(
            "there is no ctr to import {name} with: give it to this node's runtime (CRI-O: podman load --input {name}; \
             Docker: docker load --input {name}), then leave --image-archive out"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_by_its_name_without_a_registry_and_by_its_digest() {
        let listed = "docker.io/library/kube-interop-proxy:0.1.0\nregistry.example/it:1\nregistry.example/it@sha256:aa\n\
                      sha256:bb\nregistry.example/other:latest\n";
        for name in [
            "kube-interop-proxy:0.1.0",
            "registry.example/it:1",
            "registry.example/it:1@sha256:aa",
            "it@sha256:bb",
            "registry.example/other",
        ] {
            assert!(is_among(name, listed), "{name}");
        }
        for name in [
            "interop-proxy:0.1.0",
            "kube-interop-proxy:0.1",
            "it@sha256:cc",
            "it:1",
            "registry.example/it",
        ] {
            assert!(!is_among(name, listed), "{name}");
        }
    }
}
