//! The relay: sends the events of the outbox to Kafka, a webhook or standard output, in order per entity.
//!
//! A relay takes events by a [`Strategy`](pitwheel::engine::outbox::Strategy), sends them to a [`Sink`], and acknowledges what was sent. Any number of relays
//! can run on one database. Every committed event is delivered at least once; the first deliveries of one entity are in
//! order, and what is delivered again repeats what was delivered before.
//!
//! ```no_run
//! use pitwheel::engine::outbox::{RelayOptions, Shards};
//! use pitwheel_relay::{Relay, Stdout};
//!
//! # async fn example(pitwheel: pitwheel::Pitwheel) -> Result<(), pitwheel::Error> {
//! let pool = pitwheel.pool_for_loops(2, std::time::Duration::from_secs(5))?;
//! let shards = Shards::new(pool, RelayOptions::default())?;
//! Relay::new(shards, Stdout::new())
//!     .run(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
//!     .await;
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod any_sink;
mod batch_size;
mod error;
#[cfg(feature = "kafka")]
mod kafka;
mod limit;
mod message;
mod pace;
mod postponed;
mod relay;
mod resolve;
mod sink;
mod stdout;
mod unreadable;
mod webhook;

pub use any_sink::{AnySink, SinkSettings};
pub use error::SinkError;
#[cfg(feature = "kafka")]
pub use kafka::{Kafka, KafkaSettings};
pub use limit::Limit;
pub use message::Format;
pub use relay::{Relay, Stats};
pub use sink::{Outcome, Sink};
pub use stdout::Stdout;
pub use webhook::{Webhook, WebhookSettings};
