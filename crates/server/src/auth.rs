//! Who sent a request, and what the caller may do.
//!
//! Every request passes [`middleware`], which finds the [`caller`] by its token ([`tokens`]). Without a token, only
//! programs on this machine may call, and no page of another site in a browser on this machine ([`origin`]).

pub(crate) mod caller;
pub(crate) mod middleware;
pub(crate) mod origin;
pub(crate) mod permissions;
pub(crate) mod tokens;
