//! The ingestion on a real Postgres: files good and bad, processes that die, the API and the command line.

mod api;
mod bad_input;
mod chain;
mod commands;
mod crash;
mod full_disk;
mod interleave;
mod lanes;
mod loads;
mod memory;
mod support;
mod upkeep;
