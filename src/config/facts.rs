//! Values that rules across sections need.

use std::net::SocketAddr;
use std::path::Path;

use super::files::Files;
use super::headers;

/// Written by [`super::sections`], even where the rest of a section has problems, so that one problem does not hide
/// another; read by [`super::validate`].
pub(super) struct Facts<'a> {
    /// Base of relative paths.
    pub(super) base: &'a Path,
    pub(super) files: Files,
    pub(super) headers: Vec<headers::HeaderRole>,
    /// `serving.bindAddress`
    pub(super) serving: Option<SocketAddr>,
    /// `serving.additionalBindAddresses`; `None` for an item that is no address.
    pub(super) additional: Vec<Option<SocketAddr>>,
    /// `peer.advertiseAddress`
    pub(super) peer: Option<SocketAddr>,
    /// `apiServer.address`
    pub(super) api_server: Option<SocketAddr>,
    /// `admin.bindAddress`
    pub(super) admin: Option<SocketAddr>,
    /// `admin.secureBindAddress`
    pub(super) secure_admin: Option<SocketAddr>,
}

impl<'a> Facts<'a> {
    pub(super) fn new(base: &'a Path) -> Self {
        Self {
            base,
            files: Files::default(),
            headers: Vec::new(),
            serving: None,
            additional: Vec::new(),
            peer: None,
            api_server: None,
            admin: None,
            secure_admin: None,
        }
    }
}
