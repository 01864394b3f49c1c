//! A private Postgres for dev mode and tests. It has its own folder and port, and stops with the process that owns it.
//!
//! The server listens on 127.0.0.1 only and needs no password: every user of the machine can log in as its superuser. Store
//! nothing in it that they must not read. Everything else is as in production: `fsync` is on, and a crash is a real crash.
//!
//! ```
//! # fn main() -> Result<(), pitwheel_devdb::Error> {
//! let server = pitwheel_devdb::Server::start(pitwheel_devdb::Options::temporary())?;
//! assert!(server.url().starts_with("postgres://postgres@127.0.0.1:"));
//! server.stop()
//! # }
//! ```
//!
//! All calls block. Async callers wrap them in `spawn_blocking`.

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
pub use port::free_port;
pub use programs::Programs;
pub use server::Server;
