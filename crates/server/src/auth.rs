//! Who sent a request, and what the caller may do.
//!
//! Every request passes [`middleware`], which finds the [`caller`] by its token ([`tokens`]). Without a token only
//! programs on this machine are let in, and no page of another site that a browser on this machine shows ([`origin`]).

pub(crate) mod caller;
pub(crate) mod middleware;
pub(crate) mod origin;
pub(crate) mod tokens;
