//! The real binary on a real Postgres: what a person or a script is promised.

mod audit;
mod changes;
mod demo;
mod dev;
mod doors;
mod help;
mod jobs;
mod kinds;
mod otlp;
mod queues;
mod schema;
mod serve;
mod settings;
mod support;
mod tokens;
mod workers;
