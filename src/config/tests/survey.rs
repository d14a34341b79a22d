//! Which keys the reader of the file asks for, what each takes, and its default. `section` notes them here while
//! [`keys`] has an empty file read; at any other time nothing is noted.

use std::cell::RefCell;

use super::super::tree::{KeyPath, Node};

/// A value that no key accepts: the problem describes what the key accepts.
static STRANGE: Node = Node::Tagged;

/// A key that may be in the file.
#[derive(Debug, Default)]
pub(in crate::config) struct Key {
    /// Its full path.
    pub(in crate::config) path: String,
    /// What it takes.
    pub(in crate::config) takes: String,
    pub(in crate::config) required: bool,
    pub(in crate::config) default: Option<Node>,
}

thread_local! {
    static KEYS: RefCell<Option<Vec<Key>>> = const { RefCell::new(None) };
}

/// All keys, in the order of the code that reads them.
pub(in crate::config) fn keys() -> Vec<Key> {
    KEYS.set(Some(Vec::new()));
    let problems = super::parse("{}").unwrap_err();
    let mut keys = KEYS.take().unwrap();
    for key in &mut keys {
        key.required = problems.iter().any(|problem| problem.key == key.path);
        key.default.take_if(|_| key.required);
    }
    keys
}

fn is_on() -> bool {
    KEYS.with_borrow(Option::is_some)
}

fn change(change: impl FnOnce(&mut Key)) {
    KEYS.with_borrow_mut(|keys| {
        if let Some(key) = keys.as_mut().and_then(|keys| keys.last_mut()) {
            change(key);
        }
    });
}

/// Notes that a key was read. `complain`: reports a problem about its value.
pub(in crate::config) fn asked(
    path: &KeyPath,
    complain: impl FnOnce(&'static Node) -> Option<String>,
) {
    if !is_on() {
        return;
    }
    let key = Key {
        path: path.name.clone(),
        takes: expected(complain(&STRANGE)),
        ..Key::default()
    };
    KEYS.with_borrow_mut(|keys| keys.as_mut().unwrap().push(key));
}

/// It need not be there.
pub(in crate::config) fn default(default: &Node, complain: impl Fn(&Node) -> Option<String>) {
    change(|key| {
        key.default = Some(default.clone());
        if let Some(takes) = key.takes.strip_prefix("a duration") {
            assert_eq!(takes, " such as 500ms or 1m30s");
            let limits = ["0s", "10000h", "3600.5s"].map(|it| complain(&Node::Text(it.to_owned())));
            let limits = limits.into_iter().flatten();
            let limits: Vec<_> = limits.map(|it| it.replace("must be ", "")).collect();
            key.takes = format!("a duration, {}", limits.join(", "));
        }
    });
}

/// It is a list of these, with a default.
pub(in crate::config) fn default_items<T>(
    default: &[Node],
    parse: impl Fn(&Node) -> Result<T, String>,
) {
    let is_asked = |keys: &Option<Vec<Key>>| {
        let last = keys.as_ref().and_then(|keys| keys.last());
        last.is_some_and(|key| key.takes == "a list")
    };
    if KEYS.with_borrow(is_asked) {
        let item = expected(parse(&STRANGE).err());
        change(|key| key.takes = format!("a list; each item: {item}"));
        change(|key| key.default = Some(Node::List(default.to_vec())));
    }
}

fn expected(complaint: Option<String>) -> String {
    let complaint = complaint.expect("nothing takes a tagged value");
    let expected = complaint
        .strip_prefix("expected ")
        .and_then(|it| it.strip_suffix(", found a tagged value"));
    expected.expect("what was expected, and found").to_owned()
}
