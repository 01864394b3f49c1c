//! The interleaving explorer: runs the statements of two or three sessions in every feasible order, on a real Postgres.
//!
//! A session is a list of steps: SQL text, or calls of the engine's functions on the session's connection. A schedule
//! is one order of all steps. A session whose step waits for a lock is not scheduled until the lock is released. A
//! deadlock is left to the server, which ends it with an error. An error rolls the session back and drops its remaining
//! steps. Every schedule starts from the same rows, and a query describes its end. So a race that needs one statement
//! to fall between two others is found every time, not by chance.

mod connection;
mod explorer;
mod report;
mod schedule;
mod session;

pub use connection::Connection;
pub use explorer::Explorer;
pub use report::{Explored, Run};
pub use session::Session;
