//! The outbox: events that are committed with the user's data, and what a relay needs to deliver them.
//!
//! A [`Strategy`] is one way in which relays share the events: [`Shards`] by default, or [`Entities`]. The loop that sends them is in `pitwheel-relay`.

mod acknowledge;
pub(crate) mod add;
mod claim;
mod entities;
pub(crate) mod event;
mod late;
mod lease;
mod ownership;
mod read;
mod shard;
mod shards;
mod source;
mod strategy;
mod write_sent;

pub use self::claim::EntityLock;
pub use self::entities::Entities;
pub use self::event::{Acknowledged, Batch, Event};
pub use self::lease::RelayOptions;
pub use self::ownership::SHARDS;
pub use self::shards::Shards;
pub use self::source::{Column, SourceTable, WhenSent};
pub use self::strategy::Strategy;
