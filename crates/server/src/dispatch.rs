//! Jobs to remote workers, and their results back.
//!
//! Every stream is a worker of its own, with a lease in the database. A [`node`] owns the open [`streams`]; streams that
//! take the same kinds from the same queues form a [`group`], and one [`claimer`] claims for all of them. One job can be claimed
//! by its id ([`claim_job`]). Results of many workers are written together ([`reports`]), and so are [`heartbeats`]. What workers leave
//! when their streams end is settled ([`ended`]). What was claimed and cannot be sent is given
//! back ([`release`]). A report that is repeated is recognised ([`recent`]). A suspect runs alone ([`suspects`]). Slots whose
//! results went to another node are freed by its hints ([`claim_hints`]), or by a [`comparison`] with the database. Every
//! ending is counted by one node ([`record`]).

pub(crate) mod claim_hints;
mod claim_job;
mod claimer;
mod closing;
mod comparison;
pub(crate) mod ended;
mod group;
pub(crate) mod heartbeats;
mod hints;
pub(crate) mod job_bytes;
pub(crate) mod node;
pub(crate) mod not_claimed;
mod outstanding;
mod recent;
mod reconcile;
mod record;
mod release;
pub(crate) mod reports;
pub(crate) mod source;
pub(crate) mod stream;
pub(crate) mod streams;
mod suspects;
