//! The commands, a file for each noun.

pub(crate) mod demo;
pub(crate) mod jobs;
mod lane_args;
pub(crate) mod rejected;
pub(crate) mod serve;
pub(crate) mod sources;
pub(crate) mod sync;
pub(crate) mod upload;
pub(crate) mod versions;
mod wait;
