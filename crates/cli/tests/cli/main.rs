//! The real binary on a real Postgres: what a person or a script is promised.

mod demo;
mod dev;
mod help;
mod jobs;
mod queues;
mod schema;
mod serve;
mod settings;
mod support;
