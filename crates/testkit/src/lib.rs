//! What tests need: a database each, factories, and the interleaving explorer.
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

mod db;
mod explore;
mod job;
mod perform;
mod report;
mod server;
mod stage;

pub use db::TestDb;
pub use explore::{Explorer, Session};
pub use job::JobFactory;
pub use report::{Explored, Run};
pub use stage::Stage;
