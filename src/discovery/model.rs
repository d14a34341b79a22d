//! What a server's discovery lists, whichever form it was read in. Plain data, in the server's own order.

/// Everything that a server lists, the core group (`""`) first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    /// Its groups.
    pub groups: Vec<Group>,
}

/// An API group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// Its name, empty for the core group.
    pub name: String,
    /// Its versions, the preferred one first.
    pub versions: Vec<Version>,
}

/// A version of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Version {
    /// Its name.
    pub name: String,
    /// Nobody who serves it can be reached, or its document could not be read: it is there, and its contents are not to
    /// be relied on (`freshness: Stale`).
    pub stale: bool,
    /// Its resources.
    pub resources: Vec<Resource>,
}

/// A resource, with its subresources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resource {
    /// Plural name.
    pub name: String,
    /// Singular name.
    pub singular: String,
    /// What it gives and takes; `None` where only subresources of it are served.
    pub kind: Option<Kind>,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// What can be done with it.
    pub verbs: Vec<String>,
    /// Short names.
    pub short_names: Vec<String>,
    /// Categories, as `all`.
    pub categories: Vec<String>,
    /// Hash of the storage version, in the legacy form only.
    pub storage_version_hash: String,
    /// Its subresources.
    pub subresources: Vec<Subresource>,
}

/// A subresource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subresource {
    /// Its name, without that of the resource.
    pub name: String,
    /// What it gives and takes.
    pub kind: Option<Kind>,
    /// What can be done with it.
    pub verbs: Vec<String>,
}

/// A kind. Group and version are empty where they are those of the document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kind {
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// The kind's name.
    pub kind: String,
}
