//! The cases, one file for each question.

mod crowd;
mod drain;
mod idle;
mod latency;
mod remote;

pub(crate) use crowd::{backlog, in_flight, pinned};
pub(crate) use drain::{drain, end_to_end};
pub(crate) use idle::{idle, memory, process};
pub(crate) use latency::{late, latency};
pub(crate) use remote::remote;
