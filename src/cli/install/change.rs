//! From one state of a node's files to another, in an order in which the node can be left at any moment: kube-apiserver is
//! never on loopback without a proxy's manifest beside it.
//!
//! A proxy of its own pod is put there before the apiserver leaves its address, and taken away after the apiserver has it
//! back. Who comes too early finds the address taken and ends. So that nobody waits until kubelet tries again, its manifest
//! gets a note that goes away, and the pod is another one then, when the address is free.

use std::net::{IpAddr, SocketAddr};

use super::host::Host;
use crate::install;
use crate::install::state::{APISERVER, CONFIG, State};
use crate::local::process;

/// The file that has the note, and its text without.
pub(super) struct Early<'s>(Option<&'s (String, String)>);

/// Replaces the files.
pub(super) fn begin<'s>(host: &Host, from: &State, to: &'s State) -> Result<Early<'s>, String> {
    let loses_proxy = !from.pods().is_empty() && !to.has_proxy()?;
    let mut early = Early(None);
    for file in to.files() {
        let (name, text) = file;
        if from.text(name) == Some(text.as_str()) {
            continue;
        }
        let is_early = match name.as_str() {
            CONFIG => false,
            APISERVER => loses_proxy,
            _ => from.pods().is_empty(),
        };
        if is_early {
            early = Early(Some(file));
            host.write(name, &install::restarted(text)?)?;
        } else {
            host.write(name, text)?;
        }
    }
    // Its configuration goes after the proxy.
    let gone = from.files().iter().rev();
    for (name, _) in gone.filter(|(name, _)| to.text(name).is_none()) {
        host.remove(name)?;
    }
    Ok(early)
}

impl Early<'_> {
    /// Takes the note away once nobody listens at the address; until then it is called again.
    pub(super) fn go_on(&mut self, host: &Host, address: SocketAddr) -> Result<(), String> {
        let Some((name, text)) = self.0 else {
            return Ok(());
        };
        let takes = |ip: IpAddr| ip == address.ip() || ip.is_unspecified();
        if !process::listeners(address.port()).into_iter().any(takes) {
            host.write(name, text)?;
            self.0 = None;
        }
        Ok(())
    }
}
