//! Fetches documents over HTTP, within limits, from public addresses only.

mod address;
mod body;
mod client;
mod connect;
mod error;
mod headers;
mod hosts;
pub mod limits;

pub use self::address::is_public;
pub use self::client::{Client, Fetched, Options};
pub use self::error::FetchError;
pub use self::headers::{Link, Validators};
