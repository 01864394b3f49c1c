//! Connections to Postgres and the schema. Nothing here knows what a job is.

mod ctid;
pub(crate) mod migrate;
mod pool;
mod session;
mod settings;
mod tls;

pub use self::ctid::Ctid;
pub use self::migrate::{MIGRATION_LOCK, MIGRATIONS, MigrationStatus};
pub use self::pool::Pool;
pub(crate) use self::session::{Params, no_answer, query};
pub use self::session::{Session, Sql};
pub(crate) use self::tls::tls;
