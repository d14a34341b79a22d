//! Values that rules across keys need.

use std::any::Any;

use super::tree::KeyPath;

/// Each value that was read, of its own type, also items of lists. [`super::section`] notes a value even where others
/// have problems, so that one problem does not hide another.
#[derive(Debug, Default)]
pub(super) struct Facts(Vec<(KeyPath, Box<dyn Any>)>);

/// A list, with any items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Length(usize);

impl Facts {
    pub(super) fn note(&mut self, path: KeyPath, value: impl Any) {
        self.0.push((path, Box::new(value)));
    }

    pub(super) fn note_length(&mut self, list: KeyPath, length: usize) {
        self.note(list, Length(length));
    }

    /// All values of this type.
    pub(super) fn all<T: Any>(&self) -> impl Iterator<Item = (&KeyPath, &T)> {
        let values = self.0.iter();
        values.filter_map(|(path, value)| Some((path, value.downcast_ref()?)))
    }

    /// The value at `path`.
    pub(super) fn at<T: Any>(&self, path: &KeyPath) -> Option<&T> {
        self.all()
            .find(|(at, _)| *at == path)
            .map(|(_, value)| value)
    }

    /// The value of `key`, such as `etcd.prefix`.
    pub(super) fn get<T: Any>(&self, key: &str) -> Option<&T> {
        self.at(&KeyPath::of(key))
    }

    /// The items of a list that have no problems.
    pub(super) fn items<T: Any>(&self, list: &str) -> impl Iterator<Item = (&KeyPath, &T)> {
        let list = KeyPath::of(list);
        self.all().filter(move |(path, _)| path.is_item_of(&list))
    }

    /// How many items a list has, if it is one.
    pub(super) fn length(&self, list: &str) -> Option<usize> {
        self.get(list).map(|Length(length)| *length)
    }
}
