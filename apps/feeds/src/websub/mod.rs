//! WebSub: hubs that push new articles.

mod bodies;
pub(crate) mod callback;
pub(crate) mod hub;
mod signature;

pub use self::callback::{PUBLIC_PREFIX, routes};
pub use self::signature::{SignatureError, verify};
