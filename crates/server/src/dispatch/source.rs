//! Where the ending of an attempt comes from.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A node gives back a job that its worker never got.
    Node,
    /// The worker reports the ending.
    Worker,
    /// The handler has completed the job in a transaction of its own, and the worker reports an ending in case that was not
    /// committed.
    Handler,
}
