//! Jobs to remote workers, and their results back.

pub(crate) mod beats;
pub(crate) mod group;
pub(crate) mod node;
pub(crate) mod reports;
pub(crate) mod streams;
