//! The cases, a file for each question.

mod attack;
mod drain;
mod feeds;
mod few_slots;
mod fleet;
mod idle;
mod interference;
mod lanes;
mod latency;
mod lists;
mod pipelines;
mod python;
mod recurring;
mod remote;
mod scale;
mod steady;
mod streams;

pub(crate) use attack::attack;
pub(crate) use drain::{drain, end_to_end};
pub(crate) use feeds::feeds;
pub(crate) use few_slots::{few_slots, remote_few_slots};
pub(crate) use fleet::fleet;
pub(crate) use idle::{idle, memory};
pub(crate) use interference::{backlog, in_flight, pinned};
pub(crate) use lanes::lanes;
pub(crate) use latency::{late, latency, remote_latency};
pub(crate) use lists::lists;
pub(crate) use pipelines::pipelines;
pub(crate) use python::{interpreter, python};
pub(crate) use recurring::recurring;
pub(crate) use remote::remote;
pub(crate) use scale::scale;
pub(crate) use steady::steady;
pub(crate) use streams::streams;
