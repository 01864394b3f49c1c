//! Recurring jobs: one live job each, planned by the settle of the last run.

mod carried;
mod definition;
mod runs;
mod steps;
