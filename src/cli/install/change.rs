//! From one state of a node's files to another, in an order in which the node can be left at any moment: kube-apiserver is
//! never on loopback without a proxy's manifest beside it.
//!
//! A proxy of its own pod is put there before the apiserver leaves its address, and waits for it. With a file that says so
//! it is not ready, and gives the address up as soon as the apiserver leaves loopback: the next one finds it free.

use super::host::{Done, Host};
use crate::install::state::{APISERVER, LEAVING, State};

/// Writes everything but the apiserver's manifest. What runs goes on. Whether a proxy of its own pod is about to leave.
pub(super) fn begin(host: &Host, from: &State, to: &State) -> Result<bool, String> {
    // One in the apiserver's pod ends with it.
    let leaves = !from.pods().is_empty() && !to.has_proxy()?;
    match leaves {
        true => host.write(LEAVING, "")?,
        false => host.remove(LEAVING)?,
    }
    let files = to.files().iter().filter(|(name, _)| name != APISERVER);
    write(host, from, files)?;
    Ok(leaves)
}

/// Writes the apiserver's manifest, and takes away what is to be there no more.
pub(super) fn replace(host: &Host, from: &State, to: &State) -> Done {
    let files = to.files().iter();
    write(host, from, files.filter(|(name, _)| name == APISERVER))?;
    // Its configuration goes after the proxy.
    let gone = from.files().iter().rev();
    let mut gone = gone.filter(|(name, _)| to.text(name).is_none());
    gone.try_for_each(|(name, _)| host.remove(name))
}

fn write<'s>(host: &Host, from: &State, files: impl Iterator<Item = &'s (String, String)>) -> Done {
    let mut files = files.filter(|(name, text)| from.text(name) != Some(text.as_str()));
    files.try_for_each(|(name, text)| host.write(name, text))
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
        begin(&host, &before, &after).unwrap();
        let there = |name: &str| std::fs::read_to_string(manifests.join(name)).ok();
        assert!(there("new.yaml").is_some() && there("old.yaml").is_some());
        assert_eq!(there(APISERVER).as_deref(), Some("old: apiserver\n"));
        replace(&host, &before, &after).unwrap();
        assert_eq!(there("old.yaml"), None);
        assert_eq!(there(APISERVER).as_deref(), Some("new: apiserver\n"));
    }
}
