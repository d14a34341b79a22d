//! The files that `install` writes on a node. Pure.

use super::without_proxy;

pub const CONFIG: &str = "proxy.yaml";
/// Beside the configuration, while the proxy is about to be removed.
pub const LEAVING: &str = "leaving";
pub const APISERVER: &str = "kube-apiserver.yaml";
/// The proxy's own pod stands in one of these: a new one is put there before the old one is taken away.
pub const PODS: [&str; 2] = ["kube-interop-proxy.yaml", "kube-interop-proxy-2.yaml"];

/// Names and texts of files, in the order in which they are written: the configuration, without which no proxy starts, the
/// manifests of the proxy's own pods, and the apiserver's.
#[derive(Debug, Clone, PartialEq)]
pub struct State(Vec<(String, String)>);

impl State {
    pub fn new(config: Option<String>, pods: Vec<(String, String)>, apiserver: String) -> Self {
        let config = config.map(|text| (CONFIG.to_owned(), text));
        let apiserver = (APISERVER.to_owned(), apiserver);
        Self(config.into_iter().chain(pods).chain([apiserver]).collect())
    }

    pub fn files(&self) -> &[(String, String)] {
        &self.0
    }

    /// The text of this file; `None`: it is not there.
    pub fn text(&self, name: &str) -> Option<&str> {
        let file = self.0.iter().find(|(it, _)| it == name);
        file.map(|(_, text)| text.as_str())
    }

    pub fn apiserver(&self) -> &str {
        self.text(APISERVER).unwrap_or_default()
    }

    pub fn pods(&self) -> Vec<&(String, String)> {
        let all = self.0.iter();
        all.filter(|(name, _)| name != CONFIG && name != APISERVER)
            .collect()
    }

    /// The same with another manifest of the apiserver.
    pub fn with_apiserver(&self, manifest: String) -> Self {
        let pods = self.pods().into_iter().cloned().collect();
        Self::new(self.text(CONFIG).map(str::to_owned), pods, manifest)
    }

    pub fn has_proxy(&self) -> Result<bool, String> {
        Ok(!self.pods().is_empty() || without_proxy(self.apiserver(), false)?.is_some())
    }

    /// The apiserver's manifest without the proxy.
    pub fn plain(&self) -> Result<String, String> {
        let plain = without_proxy(self.apiserver(), !self.pods().is_empty())?;
        Ok(plain.unwrap_or_else(|| self.apiserver().to_owned()))
    }

    /// A name for a new pod's manifest beside those that are there.
    pub(super) fn free_name(&self) -> &'static str {
        let is_free = |name: &&&str| self.text(name).is_none();
        PODS.iter().find(is_free).unwrap_or(&PODS[0])
    }
}
