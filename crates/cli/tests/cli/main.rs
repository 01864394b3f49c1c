//! The real binary on a real Postgres: what a person or a script can rely on.

mod access;
mod audit;
mod changes;
mod demo;
mod dev;
mod help;
mod jobs;
mod kinds;
mod lanes;
mod otlp;
mod outbox;
mod pipelines;
mod queues;
mod recurring;
mod relay;
mod relay_table;
mod schema;
mod serve;
mod settings;
mod support;
mod tokens;
mod workers;
