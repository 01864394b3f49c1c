//! The schema `feeds`: one function for each statement in `sql/`, and the transactions around them.

pub(crate) mod articles;
pub(crate) mod events;
pub(crate) mod fetches;
mod schema;
pub(crate) mod sources;
pub(crate) mod websub;

pub use self::articles::StoredArticle;
pub use self::events::Topic;
pub use self::fetches::FetchRecord;
pub(crate) use self::schema::SCHEMA;
pub use self::sources::{Disabled, NewSource, Source};
