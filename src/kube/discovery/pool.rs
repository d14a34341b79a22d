//! Deduplicates equal texts, lists and resources while documents are parsed. The results outlive the pool.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use super::model::{Resource, Text, Texts};

/// Use one pool for the documents of all servers.
#[derive(Debug, Default)]
pub struct Pool {
    texts: HashSet<Text>,
    lists: HashSet<Texts>,
    resources: HashSet<Arc<Resource>>,
}

impl Pool {
    pub fn text(&mut self, text: &str) -> Text {
        shared(&mut self.texts, text, |text| text.into())
    }

    pub fn list<'a>(&mut self, texts: impl IntoIterator<Item = &'a str>) -> Texts {
        let texts: Vec<Text> = texts.into_iter().map(|text| self.text(text)).collect();
        shared(&mut self.lists, &*texts, |texts| texts.into())
    }

    pub fn resource(&mut self, resource: Resource) -> Arc<Resource> {
        shared(&mut self.resources, &resource, |resource| {
            Arc::new(resource.clone())
        })
    }
}

fn shared<T: Eq + Hash + ?Sized>(
    known: &mut HashSet<Arc<T>>,
    value: &T,
    new: impl Fn(&T) -> Arc<T>,
) -> Arc<T>
where
    Arc<T>: Borrow<T>,
{
    if let Some(known) = known.get(value) {
        return Arc::clone(known);
    }
    let new = new(value);
    known.insert(Arc::clone(&new));
    new
}
