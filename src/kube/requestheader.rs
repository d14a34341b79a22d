//! The header names by which kube-apiservers recognise users, as they publish them for the whole cluster in ConfigMap
//! `kube-system/extension-apiserver-authentication`. Pure.
//!
//! kube-apiserver only adds to it, but API users may write it too: nothing in it is sure to be accepted by an
//! apiserver, and what is kept of it is bounded.

use std::collections::{BTreeMap, BTreeSet};

use http::HeaderName;
use prost::Message;
use serde::Deserialize;

use super::nullable;

/// Most names that are kept, of all lists together.
const MAX_NAMES: usize = 64;
/// Longest list that is read, in bytes.
const MAX_LIST: usize = 16 << 10;

/// One of the lists of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameList {
    Username,
    Uid,
    Group,
    /// Prefixes of names.
    Extra,
}

impl NameList {
    pub const ALL: [Self; 4] = [Self::Username, Self::Uid, Self::Group, Self::Extra];

    /// Its key in the ConfigMap.
    pub fn field(self) -> &'static str {
        match self {
            Self::Username => "requestheader-username-headers",
            Self::Uid => "requestheader-uid-headers",
            Self::Group => "requestheader-group-headers",
            Self::Extra => "requestheader-extra-headers-prefix",
        }
    }
}

/// What is read of the ConfigMap.
#[derive(Message, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    #[prost(btree_map = "string, string", tag = "2")]
    #[serde(deserialize_with = "nullable")]
    pub data: BTreeMap<String, String>,
}

/// A list in the ConfigMap is not a list of strings in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{} is no list of names", .0.field())]
pub struct MalformedList(NameList);

/// Names and prefixes of headers, in lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedNames {
    names: BTreeSet<(NameList, String)>,
    /// There are more names than are kept.
    pub overflow: bool,
}

impl PublishedNames {
    /// `data`: of the ConfigMap. What cannot be the name of a header is left out.
    pub fn read(data: &BTreeMap<String, String>) -> Result<Self, MalformedList> {
        let mut published = Self::default();
        for list in NameList::ALL {
            let text = data.get(list.field()).map_or("", String::as_str);
            if text.len() > MAX_LIST {
                published.overflow = true;
            } else if !text.is_empty() {
                let names: Vec<String> =
                    serde_json::from_str(text).map_err(|_| MalformedList(list))?;
                for name in &names {
                    let name = name.trim().to_ascii_lowercase();
                    let any_header = list == NameList::Extra && name.is_empty();
                    if any_header || HeaderName::from_bytes(name.as_bytes()).is_ok() {
                        published.keep((list, name));
                    }
                }
            }
        }
        Ok(published)
    }

    fn keep(&mut self, name: (NameList, String)) {
        if self.names.len() < MAX_NAMES || self.names.contains(&name) {
            self.names.insert(name);
        } else {
            self.overflow = true;
        }
    }

    /// Adds all names of `other`. Returns whether there are new ones.
    pub fn add(&mut self, other: &Self) -> bool {
        let before = (self.names.len(), self.overflow);
        self.overflow |= other.overflow;
        for name in &other.names {
            self.keep(name.clone());
        }
        (self.names.len(), self.overflow) != before
    }

    /// Whether kube-apiserver has published names at all, and these are all of them.
    pub fn is_complete(&self) -> bool {
        !self.overflow && self.of(NameList::Username).next().is_some()
    }

    pub fn of(&self, list: NameList) -> impl Iterator<Item = &str> {
        let names = self.names.iter().filter(move |(of, _)| *of == list);
        names.map(|(_, name)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(group: &str) -> BTreeMap<String, String> {
        [
            (NameList::Username, r#"["X-Remote-User"]"#),
            (NameList::Group, group),
            (NameList::Extra, r#"["X-Remote-Extra-",""]"#),
        ]
        .map(|(list, text)| (list.field().to_owned(), text.to_owned()))
        .into()
    }

    fn groups(text: &str) -> Vec<String> {
        let published = PublishedNames::read(&data(text)).unwrap();
        published.of(NameList::Group).map(str::to_owned).collect()
    }

    #[test]
    fn names_are_read_without_what_cannot_be_a_header() {
        let names = r#"[" X-Auth-Group ", "x-auth-group", "", "a b", "ä", "a:b", "X_Team"]"#;
        assert_eq!(groups(names), ["x-auth-group", "x_team"]);
        assert_eq!(groups(""), [""; 0]);
        let published = PublishedNames::read(&data("[]")).unwrap();
        assert!(published.is_complete());
        let extra: Vec<_> = published.of(NameList::Extra).collect();
        assert_eq!(extra, ["", "x-remote-extra-"]);
    }

    #[test]
    fn what_is_no_list_is_an_error_that_names_it() {
        for text in ["nonsense", "{}", "[1]", "null", "\"X-Auth-Group\""] {
            let error = PublishedNames::read(&data(text)).unwrap_err();
            assert!(
                error.to_string().starts_with("requestheader-group-headers"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_apiserver_without_names_publishes_none() {
        assert!(!PublishedNames::default().is_complete());
        let empty = PublishedNames::read(&BTreeMap::new()).unwrap();
        assert!(!empty.is_complete() && !empty.overflow);
    }

    #[test]
    fn only_so_many_are_kept_and_that_is_said() {
        let many = |count: usize| {
            let names: Vec<_> = (0..count).map(|number| format!("X-{number}")).collect();
            serde_json::to_string(&names).unwrap()
        };
        // Three are in the other lists.
        let most = MAX_NAMES - 3;
        for (count, complete) in [(5, true), (most, true), (most + 1, false), (1000, false)] {
            let published = PublishedNames::read(&data(&many(count))).unwrap();
            assert_eq!(published.is_complete(), complete, "{count}");
            let kept = published.of(NameList::Group).count();
            assert_eq!(kept, count.min(MAX_NAMES - 1));
        }
        let long = format!(r#"["{}"]"#, "x".repeat(MAX_LIST));
        assert!(!PublishedNames::read(&data(&long)).unwrap().is_complete());

        let mut all = PublishedNames::read(&data(&many(most))).unwrap();
        assert!(!all.add(&all.clone()));
        assert!(all.is_complete(), "known names need no more room");
        assert!(all.add(&PublishedNames::read(&data(r#"["X-Other"]"#)).unwrap()));
        assert!(!all.is_complete());
    }
}
