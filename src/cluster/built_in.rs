//! What the local apiserver lists, less custom resources. Pure.
//!
//! A snapshot is compiled after every change of any server. It must not cost more the more custom resources there are,
//! so they are left out once for each list, not once for each snapshot.

use std::sync::Arc;

use crate::kube::gvr::{Custom, ServedSet};

/// The last list, and what is left of it.
#[derive(Debug, Default)]
pub struct BuiltIn {
    made_of: Option<(Arc<ServedSet>, Arc<Custom>)>,
    left: ServedSet,
}

impl BuiltIn {
    /// Goes through `listed`, unless nothing has changed.
    pub fn update(&mut self, listed: Option<&Arc<ServedSet>>, custom: &Arc<Custom>) {
        if let Some(listed) = listed
            && self.of(listed, custom).is_none()
        {
            let left = listed.iter().filter(|gvr| !custom.contains(gvr.borrow()));
            self.left = left.cloned().collect();
            self.made_of = Some((listed.clone(), custom.clone()));
        }
    }

    /// What is left of `listed`, if these were the last ones.
    pub fn of(&self, listed: &Arc<ServedSet>, custom: &Arc<Custom>) -> Option<&ServedSet> {
        let (set, known) = self.made_of.as_ref()?;
        (Arc::ptr_eq(set, listed) && Arc::ptr_eq(known, custom)).then_some(&self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::gvr::{GvrRef, Pair};

    fn listed(names: &[&str]) -> Arc<ServedSet> {
        let gvr = |resource| GvrRef {
            group: "example.com",
            version: "v1",
            resource,
            subresource: "",
        };
        Arc::new(names.iter().map(|name| gvr(*name).owned()).collect())
    }

    fn custom(name: &str) -> Arc<Custom> {
        Arc::new(Custom {
            definitions: [Pair("example.com".into(), name.into())].into(),
            aggregated: [].into(),
        })
    }

    #[test]
    fn custom_resources_are_left_out_of_the_newest_list() {
        let mut built_in = BuiltIn::default();
        let (both, more) = (
            listed(&["gadgets", "widgets"]),
            listed(&["gadgets", "gizmos", "widgets"]),
        );
        let (gadgets, widgets) = (custom("gadgets"), custom("widgets"));
        for (list, custom, left) in [
            (&both, &widgets, &["gadgets"][..]),
            (&both, &gadgets, &["widgets"]),
            (&more, &widgets, &["gadgets", "gizmos"]),
        ] {
            assert_eq!(built_in.of(list, custom), None, "of other lists");
            built_in.update(Some(list), custom);
            assert_eq!(built_in.of(list, custom), Some(&*listed(left)));
        }
    }

    #[test]
    fn a_list_is_gone_through_once() {
        let mut built_in = BuiltIn::default();
        let (list, widgets) = (listed(&["gadgets", "widgets"]), custom("widgets"));
        built_in.update(Some(&list), &widgets);
        built_in.left.clear();
        built_in.update(Some(&list), &widgets);
        assert_eq!(built_in.of(&list, &widgets), Some(&ServedSet::new()));
    }
}
