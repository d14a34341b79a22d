//! Watches across restarts (KEP-1904): resume routing, bookmarks at shutdown. Not built yet: `watch.*` is `false`.
