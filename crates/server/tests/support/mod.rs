//! What the tests of the server share: a node on a port of its own, and a worker's stream that the test drives by hand.

#![allow(dead_code, unused_imports, reason = "each test file uses its own part")]

mod node;
mod silent;
mod worker_stream;

pub(crate) use node::Node;
pub(crate) use silent::Silent;
pub(crate) use worker_stream::{
    WorkerStream, claim_of, next_assignments, next_welcome, result, stream_request,
};
