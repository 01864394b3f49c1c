//! Parses documents: RSS 0.9x, 1.0 and 2.0, Atom, JSON Feed.

mod article;
mod document;
mod error;
mod identity;
mod text;

pub use self::article::Article;
pub use self::document::{Document, parse};
pub use self::error::ParseError;
pub use self::identity::Identity;
