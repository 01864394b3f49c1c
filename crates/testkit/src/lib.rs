//! What tests need: a database each, factories, and the interleaving explorer. A dev-dependency, never a dependency.
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

mod database;
mod explore;
mod job_factory;
mod postgres;
mod test_db;

pub use database::Database;
pub use explore::{Connection, Explored, Explorer, Run, Session};
pub use job_factory::JobFactory;
pub use postgres::{connect, is_listening};
pub use test_db::TestDb;
