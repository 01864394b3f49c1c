//! A feed fetcher on Pitwheel. Every source has one recurring job; its runs fetch the source and store what is new.
//!
//! It is an ordinary program: it uses the public interface of `pitwheel` and `pitwheel-server`, and has a schema of its own.

#![warn(missing_docs)]

pub mod discover;
mod error;
mod feeds;
pub mod fetch;
pub mod http;
pub mod kinds;
mod metrics;
pub mod opml;
pub mod parse;
pub mod schedule;
mod store;
pub mod websub;
mod worker;

pub use error::Error;
pub use feeds::{Feeds, Imported, PAGE_MAX, Subscribed};
pub use pitwheel_app::TlsError;
pub use store::{Disabled, FetchRecord, NewSource, Source, StoredArticle, Topic};
pub use worker::{FetchStats, WorkerOptions, fetch_due, run};
