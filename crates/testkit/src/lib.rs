//! What the tests of all crates share: a database each, factories, workers and processes in the background, an HTTP
//! client, a Kafka broker, and the interleaving explorer. Only for tests and benchmarks.
//!
//! ```no_run
//! # use pitwheel::Settled;
//! # use pitwheel_testkit::TestDb;
//! # async fn a_lost_lease_cannot_complete() -> anyhow::Result<()> {
//! let db = TestDb::new().await?;
//! db.job().insert().await?;
//! let first = db.claim_one().await?;
//! db.expire_holder(&first).await?;
//! db.sweep().await?;
//! let second = db.claim_one().await?;
//!
//! assert_eq!(db.complete(&first).await?, Settled::Lost);
//! assert_eq!(db.complete(&second).await?, Settled::Written);
//! # Ok(())
//! # }
//! ```

mod child_process;
mod database;
mod events;
mod explore;
#[cfg(feature = "http")]
mod http;
mod job_factory;
#[cfg(feature = "kafka")]
mod kafka;
mod kinds;
mod postgres;
mod psql;
mod scratch;
mod test_db;
mod wait;
mod warnings;
mod worker;

pub use child_process::{ChildProcess, is_alive, signal};
pub use database::Database;
pub use events::{event_ids, take_events};
pub use explore::{Connection, Explored, Explorer, Run, Session};
#[cfg(feature = "http")]
pub use http::{Events, Http, HttpResponse};
pub use job_factory::JobFactory;
#[cfg(feature = "kafka")]
pub use kafka::{KafkaAccess, KafkaBroker};
pub use kinds::{Greet, Nap, Work, work};
pub use postgres::{connect, is_listening};
pub use psql::psql;
pub use scratch::ScratchFolder;
pub use test_db::TestDb;
pub use wait::{WAIT_MAX, block_until, time_until, wait_until};
pub use warnings::Warnings;
pub use worker::{Concurrency, RunningWorker, start_worker, worker};
