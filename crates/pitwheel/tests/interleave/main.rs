//! The engine's statements beside each other, in every order: no schedule may end badly.
//!
//! Every promise has a broken twin: the same scenario with a statement that is wrong in a common way. The explorer must
//! find its bad end. If it does not, its silence about the right statement proves nothing either.

mod claim;
mod claim_by_id;
mod control;
mod enqueue;
mod followers;
mod heartbeat;
mod held;
mod lane_turns;
mod lanes;
mod migrate;
mod outbox;
mod outbox_entities;
mod outbox_entities_held;
mod outbox_floors;
mod outbox_parking;
mod outbox_register;
mod pipelines;
mod recover;
mod recurring;
mod recurring_batches;
mod sessions;
mod settle;
mod takeover;
mod turn;
