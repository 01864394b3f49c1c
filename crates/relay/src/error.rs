//! Settings of a sink that cannot be used.

/// A sink that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// No sink has this form.
    #[error("`{0}` is not a sink: use `kafka://host:9092`, `https://host/path` or `stdout`")]
    Unknown(String),
    /// Its settings are wrong.
    #[error("the sink cannot be used: {0}")]
    Settings(String),
}
