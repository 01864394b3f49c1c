//! A private Postgres for dev mode and tests: its own folder, its own port, stopped with its owner.
//!
//! The server listens on 127.0.0.1 alone and trusts whoever reaches it: every user of the machine can
//! log in as its superuser. Keep nothing in it that they may not read. Everything else is as in
//! production: `fsync` is on, and a crash is a real crash.
//!
//! ```
//! # fn main() -> Result<(), pitwheel_devdb::Error> {
//! let server = pitwheel_devdb::Server::start(pitwheel_devdb::Options::temporary())?;
//! assert!(server.url().starts_with("postgres://postgres@127.0.0.1:"));
//! server.stop()
//! # }
//! ```
//!
//! All calls block: async callers wrap them in `spawn_blocking`.

#![warn(missing_docs)]

mod account;
mod error;
mod folder;
mod log;
mod options;
mod port;
mod postmaster;
mod programs;
mod server;
mod session;
mod supervisor;

pub use error::Error;
pub use folder::running;
pub use options::{Options, default_dir};
pub use programs::Programs;
pub use server::Server;
