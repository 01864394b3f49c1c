//! Who calls, and what the caller may do.

pub(crate) mod access;
