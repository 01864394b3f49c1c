//! The commands, a file for each noun.

pub(crate) mod articles;
pub(crate) mod demo;
pub(crate) mod fetch_due;
pub(crate) mod opml;
pub(crate) mod serve;
pub(crate) mod sources;
pub(crate) mod subscriptions;
