//! The handlers of the jobs.

mod failure;
mod fetch;
mod followers;
mod handlers;
mod load;
mod run;
mod upkeep;

pub use self::run::{WorkerOptions, run};
