//! Runs the jobs of the feeds: until it is stopped, or until nothing is due.

mod batch;
mod decide;
mod fetcher;
mod run;
mod upkeep;

pub use self::fetcher::FetchStats;
pub use self::run::{WorkerOptions, fetch_due, run};
