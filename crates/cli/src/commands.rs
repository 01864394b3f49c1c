//! The commands, a file for each noun.

pub(crate) mod audit;
pub(crate) mod demo;
pub(crate) mod dev;
pub(crate) mod jobs;
pub(crate) mod kinds;
pub(crate) mod lanes;
pub(crate) mod migrate;
pub(crate) mod outbox;
pub(crate) mod pipelines;
pub(crate) mod queues;
pub(crate) mod recurring;
pub(crate) mod relay;
pub(crate) mod serve;
pub(crate) mod tokens;
pub(crate) mod workers;
