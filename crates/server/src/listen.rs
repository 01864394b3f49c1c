//! Connections from clients, with TLS or without, and limits of their requests and answers.

pub(crate) mod admission;
mod ages;
pub(crate) mod answers;
pub(crate) mod bodies;
pub(crate) mod calls;
pub(crate) mod connections;
mod entries;
pub(crate) mod lifetimes;
mod per_token;
pub(crate) mod probes;
pub(crate) mod reflection;
pub(crate) mod requests;
pub(crate) mod tls;
pub(crate) mod unwritten;
