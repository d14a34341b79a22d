//! Headers by which an apiserver of the cluster may recognise a user, and that the configuration does not name.
//!
//! They are removed from the requests of everybody who is no peer, but for those that clients need
//! ([`client_headers`]): API users can write what is published. Until they are known, only headers that clients need go
//! over connections on which an apiserver accepts such headers.
//!
//! The check of `local` is the only writer; every request reads, just before it is sent: it may have begun before a name
//! was known.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use http::HeaderMap;

use super::header_names::HeaderNames;
use super::headers::PrivilegedHeaders;
use crate::kube::client_headers;
use crate::kube::requestheader::{NameList, PublishedNames};

#[derive(Debug, Default)]
pub struct SurplusHeaders {
    /// All names of the cluster are known.
    known: AtomicBool,
    /// Those that the configuration does not name, if there are some.
    names: ArcSwapOption<HeaderNames>,
}

impl SurplusHeaders {
    /// Whether all names of the cluster are known. One load.
    pub fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    /// Removes them from a request, but not what the proxy has written itself. Returns the number of names removed. One
    /// load, if there are none.
    pub fn strip(&self, headers: &mut HeaderMap, configured: &PrivilegedHeaders) -> usize {
        let names = self.names.load();
        names.as_deref().map_or(0, |names| {
            names.strip(headers, |name| stays(name, configured))
        })
    }

    /// `published`: all names that were seen so far.
    pub fn set(&self, configured: &PrivilegedHeaders, published: &PublishedNames) {
        let lists = [NameList::Username, NameList::Uid, NameList::Group];
        let names = lists.into_iter().flat_map(|list| published.of(list));
        let names = names.filter(|name| !configured.contains(name));
        let prefixes = published.of(NameList::Extra);
        let prefixes = prefixes.filter(|prefix| !configured.takes_in(prefix));
        let surplus = HeaderNames::new(
            names.map(str::to_owned).collect(),
            prefixes.map(str::to_owned).collect(),
        );
        let surplus = (!surplus.is_empty()).then(|| Arc::new(surplus));
        self.names.store(surplus);
        self.known.store(published.is_complete(), Ordering::Release);
    }
}

/// Removes what clients do not need and the proxy has not written itself.
pub fn keep_client_headers(headers: &mut HeaderMap, configured: &PrivilegedHeaders) {
    let all = HeaderNames::new(Vec::new(), vec![String::new()]);
    all.strip(headers, |name| stays(name, configured));
}

/// Whether clients need a header, or only the proxy can have written it.
fn stays(name: &str, configured: &PrivilegedHeaders) -> bool {
    client_headers::is_one(name) || configured.contains(name)
}

#[cfg(test)]
mod tests;
