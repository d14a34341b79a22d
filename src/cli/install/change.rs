//! From one state of a node's files to another, in an order in which the node can be left at any moment: kube-apiserver is
//! never on loopback without a proxy's manifest beside it.
//!
//! A proxy of its own pod is put there before the apiserver leaves its address, and taken away after the apiserver has it
//! back. Who comes too early finds the address taken and ends. So that nobody waits until kubelet tries again, its manifest
//! gets a note that goes away, and the pod is another one then, when the address is free. Whoever listens there by then
//! may be that pod already: what counts is that nobody does who did before.

use std::collections::HashSet;
use std::net::SocketAddr;

use super::host::{Done, Host};
use crate::install;
use crate::install::state::{APISERVER, CONFIG, State};
use crate::local::process;

/// What makes room for what comes too early.
pub(super) struct Early<'s> {
    /// The file that has the note, and its text without.
    noted: Option<&'s (String, String)>,
    address: SocketAddr,
    /// The sockets that listened at the address before.
    before: HashSet<u64>,
}

/// Writes everything but the apiserver's manifest. What runs goes on.
pub(super) fn begin<'s>(
    host: &Host,
    address: SocketAddr,
    from: &State,
    to: &'s State,
) -> Result<Early<'s>, String> {
    let mut early = Early {
        noted: None,
        address,
        before: process::listening_at(address),
    };
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
        self.noted = Some(file);
        host.write(name, &install::restarted(text)?)
    }

    /// Takes the note away once the address is free; until then it is called again.
    pub(super) fn go_on(&mut self, host: &Host) -> Done {
        let Some((name, text)) = self.noted else {
            return Ok(());
        };
        let now = process::listening_at(self.address);
        if self.before.is_disjoint(&now) {
            host.write(name, text)?;
            self.noted = None;
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
        let address = "127.0.0.1:1".parse().unwrap();
        let mut change = begin(&host, address, &before, &after).unwrap();
        let there = |name: &str| std::fs::read_to_string(manifests.join(name)).ok();
        assert!(there("new.yaml").is_some() && there("old.yaml").is_some());
        assert_eq!(there(APISERVER).as_deref(), Some("old: apiserver\n"));
        change.replace(&host, &before, &after).unwrap();
        assert_eq!(there("old.yaml"), None);
        assert_eq!(there(APISERVER).as_deref(), Some("new: apiserver\n"));
    }

    #[test]
    fn the_note_goes_once_others_listen_at_the_address_than_before() {
        let dir = tempfile::tempdir().unwrap();
        let manifests = dir.path().join("etc/kubernetes/manifests");
        std::fs::create_dir_all(manifests.join("../kube-interop-proxy")).unwrap();
        std::fs::create_dir_all(&manifests).unwrap();
        let host = Host::new(dir.path());
        let apiserver = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = apiserver.local_addr().unwrap();
        let text = "metadata: {}\n".to_owned();
        let pod = vec![("new.yaml".to_owned(), text.clone())];
        let before = State::new(None, Vec::new(), "old: apiserver\n".to_owned());
        let after = State::new(None, pod, "new: apiserver\n".to_owned());
        let mut change = begin(&host, address, &before, &after).unwrap();
        change.replace(&host, &before, &after).unwrap();
        let there = || std::fs::read_to_string(manifests.join("new.yaml")).unwrap();
        change.go_on(&host).unwrap();
        assert!(there().contains("restarted"), "{}", there());
        drop(apiserver);
        let _proxy = std::net::TcpListener::bind(address).unwrap();
        change.go_on(&host).unwrap();
        assert_eq!(there(), text);
    }
}
