//! What a request is: what it asks for, who sent it, which of its headers count. Pure.

pub mod credential;
pub mod headers;
pub mod info;
pub mod token;
pub mod who;
