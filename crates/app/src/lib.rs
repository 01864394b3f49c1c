//! What the programs on Pitwheel share: connections to their database, the migrations of their schema, a private Postgres when no
//! database is named, and what a terminal shows.
//!
//! It knows no application.

#![warn(missing_docs)]

mod migrate;
pub mod output;
mod pool;
mod private_database;
mod progress;
mod signals;
mod tls;

pub use migrate::{Schema, migrate};
pub use pool::connect;
pub use private_database::PrivateDatabase;
pub use progress::Progress;
pub use signals::stop_at_signal;
pub use tls::{TlsError, client_config};
