//! From one state of a node's files to another, in an order in which the node can be left at any moment: kube-apiserver is
//! never on loopback without a proxy's manifest beside it.
//!
//! A proxy of its own pod is put there before the apiserver leaves its address, and taken away after the apiserver has it
//! back. Who comes too early finds the address taken and ends. So that nobody waits until kubelet tries again, its manifest
//! gets a note that goes away, and the pod is another one then, when the address is free.

use std::net::SocketAddr;

use super::host::{Done, Host};
use crate::install;
use crate::install::state::{APISERVER, CONFIG, State};
use crate::local::process;

/// The file that has the note, and its text without.
pub(super) struct Early<'s>(Option<&'s (String, String)>);

/// Writes everything but the apiserver's manifest. What runs goes on.
pub(super) fn begin<'s>(host: &Host, from: &State, to: &'s State) -> Result<Early<'s>, String> {
    let mut early = Early(None);
    for file in to.files().iter().filter(|(name, _)| name != APISERVER) {
        let is_early = from.pods().is_empty() && file.0 != CONFIG;
        early.write(host, from, file, is_early)?;
    }
    Ok(early)
}

impl<'s> Early<'s> {
    /// Writes the apiserver's manifest, and takes away what is to be there no more.
    pub(super) fn replace(&mut self, host: &Host, from: &State, to: &'s State) -> Done {
        let loses_proxy = !from.pods().is_empty() && !to.has_proxy()?;
        let mut files = to.files().iter();
        if let Some(file) = files.find(|(name, _)| name == APISERVER) {
            self.write(host, from, file, loses_proxy)?;
        }
        // Its configuration goes after the proxy.
        let gone = from.files().iter().rev();
        for (name, _) in gone.filter(|(name, _)| to.text(name).is_none()) {
            host.remove(name)?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        host: &Host,
        from: &State,
        file: &'s (String, String),
        is_early: bool,
    ) -> Done {
        let (name, text) = file;
        if from.text(name) == Some(text.as_str()) {
            return Ok(());
        }
        if !is_early {
            return host.write(name, text);
        }
        self.0 = Some(file);
        host.write(name, &install::restarted(text)?)
    }

    /// Takes the note away once nobody listens at the address; until then it is called again.
    pub(super) fn go_on(&mut self, host: &Host, address: SocketAddr) -> Done {
        let Some((name, text)) = self.0 else {
            return Ok(());
        };
        if process::listening_at(address).is_empty() {
            host.write(name, text)?;
            self.0 = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_pod_is_put_there_before_anything_that_runs_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let manifests = dir.path().join("etc/kubernetes/manifests");
        std::fs::create_dir_all(&manifests).unwrap();
        std::fs::create_dir_all(manifests.join("../kube-interop-proxy")).unwrap();
        let pod = |name: &str| vec![(name.to_owned(), "metadata: {}\n".to_owned())];
        let before = State::new(None, pod("old.yaml"), "old: apiserver\n".to_owned());
        let after = State::new(None, pod("new.yaml"), "new: apiserver\n".to_owned());
        for (name, text) in before.files() {
            std::fs::write(manifests.join(name), text).unwrap();
        }
        let host = Host::new(dir.path());
        let mut change = begin(&host, &before, &after).unwrap();
        let there = |name: &str| std::fs::read_to_string(manifests.join(name)).ok();
        assert!(there("new.yaml").is_some() && there("old.yaml").is_some());
        assert_eq!(there(APISERVER).as_deref(), Some("old: apiserver\n"));
        change.replace(&host, &before, &after).unwrap();
        assert_eq!(there("old.yaml"), None);
        assert_eq!(there(APISERVER).as_deref(), Some("new: apiserver\n"));
    }
}
