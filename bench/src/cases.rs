//! The cases, a file for each question.

mod drain;
mod few_slots;
mod idle;
mod interference;
mod latency;
mod lists;
mod python;
mod remote;
mod scale;
mod streams;

pub(crate) use drain::{drain, end_to_end};
pub(crate) use few_slots::few_slots;
pub(crate) use idle::{idle, memory};
pub(crate) use interference::{backlog, in_flight, pinned};
pub(crate) use latency::{late, latency, remote_latency};
pub(crate) use lists::lists;
pub(crate) use python::{interpreter, python};
pub(crate) use remote::remote;
pub(crate) use scale::scale;
pub(crate) use streams::streams;
