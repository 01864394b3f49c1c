//! Enqueue and complete inside your own transaction: they commit with your rows, or not at all.
//!
//! Enable the feature of the driver you use. Other drivers and languages call the SQL function `pitwheel.enqueue`.
//!
//! To complete a job together with its effects, write the fenced completion first and look at its result:
//! [`Settled::Lost`](crate::Settled::Lost) means that the job is no longer yours, so roll back.

#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
mod completed;
#[cfg(feature = "sqlx")]
pub mod sqlx;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;

#[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
pub use self::completed::Completed;
