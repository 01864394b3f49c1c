//! The routes of the feeds, under `/api/v1/feeds`.

mod api;
mod articles;
mod lists;
pub(crate) mod problem;
mod router;
mod sources;
mod subscriptions;
pub mod views;

pub use self::router::routes;
