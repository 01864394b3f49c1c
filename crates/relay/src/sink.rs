//! Where events go.

use pitwheel::engine::outbox::Event;

use crate::limit::Limit;

/// What became of an event that was given to a sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver has it.
    Sent,
    /// It was not sent, or it is not known whether it was. It is sent again later.
    Again(String),
    /// The receiver will never take it as it is. Its entity is parked with this reason.
    Refused(String),
}

/// Where events go.
pub trait Sink: Send {
    /// Sends events, those of one entity in the order given, and nothing after the limit. Returns one outcome for each.
    ///
    /// If an event was not sent, no later event of its entity was received before it. Not safe to cancel: events may be on
    /// their way.
    fn send(&mut self, events: &[Event], limit: &Limit) -> impl Future<Output = Vec<Outcome>> + Send;
}
