//! The schema `feeds`: one function for each statement in `sql/`, and the transactions around them.

pub(crate) mod articles;
pub(crate) mod fetches;
pub(crate) mod migrate;
pub(crate) mod pool;
pub(crate) mod sources;
pub(crate) mod websub;

pub use self::articles::StoredArticle;
pub use self::fetches::FetchRecord;
pub use self::sources::{Disabled, NewSource, Source};
