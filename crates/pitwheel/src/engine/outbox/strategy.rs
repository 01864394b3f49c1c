//! What a relay asks of the outbox.

use std::future::Future;
use std::time::Instant;

use crate::engine::outbox::event::{Acknowledged, Batch, Event};
use crate::error::Error;

/// One way in which relays share an outbox.
///
/// The promises: an event is taken by one relay at a time. Events of one entity are taken in the order of their ids, and none of them
/// while another relay may still send an earlier one. An event that was taken and neither acknowledged nor parked is taken again.
///
/// After an error, what is held is checked with the next [`Strategy::take`]; events that were taken may still be acknowledged.
pub trait Strategy: Send {
    /// Takes about `limit` events, and those that were taken before and not acknowledged. Also registers the relay, renews its lease, and
    /// takes and gives back what it holds, as others come and go: so when this is called, nothing that was taken before may still
    /// be on its way to a sink.
    fn take(&mut self, limit: usize) -> impl Future<Output = Result<Batch, Error>> + Send;

    /// These events were delivered: of each entity the first of those taken, without a gap. Those whose rows are locked are left. Renews the lease when it is due. With no events it
    /// only renews; call it so at least three times per lease while a send takes long. It gives up nothing, also after an error. If the lease was
    /// lost, the deadline that it returns has passed.
    fn acknowledge(&mut self, sent: &[Event]) -> impl Future<Output = Result<Acknowledged, Error>> + Send;

    /// Parks the entity of an event that can never be delivered: this event, and all of the entity behind it, wait for an
    /// operator. False: nothing was changed. Either it is not held any more, or a row is locked; then the entity is left out of takes for a
    /// while, and the event is to be refused again.
    fn park(&mut self, event: &Event, reason: &str) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Leaves the entity of an event that was not sent out of all takes until then, all of its events together, so that others flow.
    /// It may be taken sooner if what is held changes. False: too many are left out already, and this one is not.
    fn postpone(&mut self, event: &Event, until: Instant) -> bool;

    /// Whether the event is still held, as far as is known. If not, it must not be sent.
    fn holds(&self, event: &Event) -> bool;

    /// Gives up all that is held, at once. Nothing that was taken may be sent after this.
    fn release(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}
