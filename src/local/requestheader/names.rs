//! Collects the header names by which apiservers of the cluster recognise users, and gives them to requests.
//!
//! A name that was seen stays until the end of this process: who may write the ConfigMap could remove one for a moment
//! that an apiserver reads.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::watch;

use crate::config::RequestHeaders;
use crate::kube::requestheader::PublishedNames;
use crate::local::state::LocalState;
use crate::request::headers::PrivilegedHeaders;

/// Etcd's copy of the names; `None` while there is none.
pub type NamesInEtcd = watch::Receiver<Option<Arc<PublishedNames>>>;

/// The only writer of [`SurplusHeaders`](crate::request::surplus::SurplusHeaders).
pub struct NameCollector {
    configured: PrivilegedHeaders,
    etcd: NamesInEtcd,
    all: PublishedNames,
    state: Arc<LocalState>,
}

impl NameCollector {
    pub fn new(configured: &RequestHeaders, etcd: NamesInEtcd, state: Arc<LocalState>) -> Self {
        Self {
            configured: PrivilegedHeaders::new(configured),
            etcd,
            all: PublishedNames::default(),
            state,
        }
    }

    /// Adds the names of one copy.
    pub fn add(&mut self, names: &PublishedNames) {
        if self.all.add(names) {
            let surplus = &self.state.surplus_headers;
            surplus.set(&self.configured, &self.all);
        }
    }

    /// Adds what etcd has, and will have, until dropped.
    pub async fn follow_etcd(&mut self) -> Infallible {
        loop {
            let names = self.etcd.borrow_and_update().clone();
            if let Some(names) = names {
                self.add(&names);
            }
            if self.etcd.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Whether etcd's copy can be read.
    pub fn etcd_tells(&self) -> bool {
        self.etcd.borrow().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;
    use crate::kube::requestheader::NameList;

    fn published(groups: &str) -> PublishedNames {
        let data: BTreeMap<_, _> = [
            (NameList::Username, r#"["X-Remote-User"]"#),
            (NameList::Group, groups),
        ]
        .map(|(list, text)| (list.field().to_owned(), text.to_owned()))
        .into();
        PublishedNames::read(&data).unwrap()
    }

    #[tokio::test]
    async fn a_name_that_any_copy_had_is_removed_until_the_end() {
        let configured = RequestHeaders {
            username: vec![HeaderName::from_static("x-remote-user")],
            uid: Vec::new(),
            group: vec![HeaderName::from_static("x-remote-group")],
            extra_prefixes: Vec::new(),
        };
        let (in_etcd, etcd) = watch::channel(None);
        let state = Arc::new(LocalState::default());
        let mut collector = NameCollector::new(&configured, etcd, state.clone());
        let removed = |name: &'static str| {
            let name = HeaderName::from_static(name);
            let mut headers = HeaderMap::from_iter([(name, HeaderValue::from_static("x"))]);
            let configured = PrivilegedHeaders::new(&configured);
            state.surplus_headers.strip(&mut headers, &configured) == 1
        };
        assert!(!state.surplus_headers.is_known() && !collector.etcd_tells());

        collector.add(&published(r#"["X-A"]"#));
        assert!(state.surplus_headers.is_known() && removed("x-a"));
        let mut follow = async || {
            let follow = tokio::time::timeout(std::time::Duration::ZERO, collector.follow_etcd());
            assert!(follow.await.is_err());
            collector.etcd_tells()
        };
        in_etcd.send_replace(Some(Arc::new(published(r#"["X-B"]"#))));
        assert!(follow().await && removed("x-a") && removed("x-b"));
        in_etcd.send_replace(Some(Arc::new(published("[]"))));
        assert!(follow().await && removed("x-a") && removed("x-b"));
        in_etcd.send_replace(None);
        assert!(!follow().await && removed("x-a") && removed("x-b"));
        drop(in_etcd);
        assert!(!follow().await && !removed("x-c"));
    }
}
