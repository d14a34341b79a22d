//! What a request is: what it asks for, who sent it, which of its headers count. Pure.

pub mod headers;
pub mod info;
pub mod who;
