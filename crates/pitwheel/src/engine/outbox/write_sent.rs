//! Writing that events were delivered: rows that are locked, or that Postgres refuses to change, delay their own entities only.

use std::collections::HashSet;
use std::future::Future;
use std::time::{Duration, Instant};

use crate::engine::outbox::event::Event;
use crate::engine::outbox::strategy::Strategy;
use crate::error::Error;

/// How long an entity with a locked row waits before it is sent, acknowledged or moved again.
pub(super) const LOCKED_WAIT: Duration = Duration::from_secs(1);
/// How long an entity waits before it is sent again if Postgres refuses to change its row. The cause is in the table, so it lasts, and each
/// time the events of the entity are delivered again.
const REFUSED_WAIT: Duration = Duration::from_secs(30);
/// Refused entities of a batch that are looked for, so that a batch of which all are refused makes some hundred statements, not thousands. The
/// rest waits for the next batch.
const REFUSED_MAX: usize = 100;

/// What became of delivered events.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Written {
    pub(super) lost: usize,
    pub(super) locked: usize,
    pub(super) refused: usize,
    /// Entities that were left are too many to leave them out of reads.
    pub(super) must_wait: bool,
}

/// The statements of a strategy.
pub(super) trait WriteSent: Strategy {
    /// Renews the lease when it is due. If it has expired, nothing is held any more.
    fn renew(&mut self) -> impl Future<Output = Result<(), Error>> + Send;

    /// Writes that events were delivered. Returns how many were lost. After an error, another call with the same events finds done what was.
    fn write(&mut self, sent: &[Event]) -> impl Future<Output = Result<usize, Error>> + Send;

    /// Of delivered events, the ids of those whose rows another transaction has locked.
    fn locked(&self, sent: &[Event]) -> impl Future<Output = Result<HashSet<i64>, Error>> + Send;

    /// Whether the last acknowledgement met a locked row. Then the next one looks for locks first, and waits for none.
    fn meets_locks(&mut self) -> &mut bool;
}

/// Writes that events were delivered. Entities with rows that are locked or refused are left, and left out of the next takes.
pub(super) async fn write_sent(strategy: &mut impl WriteSent, sent: &[Event]) -> Result<Written, Error> {
    strategy.renew().await?;
    let mut written = Written::default();
    if sent.is_empty() {
        return Ok(written);
    }
    if !*strategy.meets_locks() {
        match strategy.write(sent).await {
            Err(Error::Database(error)) if error.is_locked() => *strategy.meets_locks() = true,
            Err(Error::Database(error)) if error.refuses_values() || error.is_fault_of_server() => {}
            all => return Ok(Written { lost: all?, ..written }),
        }
    }
    let mut others = sent.to_vec();
    if *strategy.meets_locks() {
        let (free, locked) = before_locked(sent, &strategy.locked(sent).await?);
        *strategy.meets_locks() = !locked.is_empty();
        written.locked = locked.len();
        written.must_wait = !leave_out(strategy, &locked, LOCKED_WAIT);
        others = free;
    }
    others.sort_by(|one, other| one.entity_key.cmp(&other.entity_key));
    write_others(strategy, &others, &mut written).await?;
    Ok(written)
}

/// Writes delivered events, sorted by their entities. If Postgres refuses, each half is written for itself, until the entities at fault are found.
async fn write_others(
    strategy: &mut impl WriteSent,
    others: &[Event],
    written: &mut Written,
) -> Result<(), Error> {
    let (mut parts, mut refused) = (vec![others], 0);
    while let Some(part) = parts.pop().filter(|part| !part.is_empty()) {
        strategy.renew().await?;
        let error = match strategy.write(part).await {
            Ok(lost) => {
                written.lost += lost;
                continue;
            }
            Err(Error::Database(error)) if error.refuses_values() || error.is_fault_of_server() => error,
            Err(error) => {
                *strategy.meets_locks() |= matches!(&error, Error::Database(error) if error.is_locked());
                return Err(error);
            }
        };
        let wait = match halves(part) {
            Some((one, other)) if refused < REFUSED_MAX => {
                parts.extend([other, one]);
                continue;
            }
            Some(_) => LOCKED_WAIT,
            None => REFUSED_WAIT,
        };
        refused += 1;
        let (id, topic, events) = (part[0].id, &*part[0].topic, part.len());
        tracing::warn!(%error, id, topic, events, "Postgres refuses to acknowledge sent events: they are sent again");
        written.refused += events;
        written.must_wait |= !leave_out(strategy, part, wait);
    }
    Ok(())
}

/// Leaves entities out of reads for a while. False: some of them are not.
fn leave_out(strategy: &mut impl WriteSent, events: &[Event], wait: Duration) -> bool {
    let until = Instant::now() + wait;
    // What is not held any more is not taken again.
    let stays_in = |event: &&Event| !strategy.postpone(event, until) && strategy.holds(event);
    events.iter().filter(stays_in).count() == 0
}

/// Two parts of events that are sorted by their entities, none of which is in both. `None`: they are all of one entity.
fn halves(events: &[Event]) -> Option<(&[Event], &[Event])> {
    let key = &events.get(events.len() / 2)?.entity_key;
    let begin = events.partition_point(|event| event.entity_key < *key);
    let end = events.partition_point(|event| event.entity_key <= *key);
    let at = if begin > 0 { begin } else { end };
    (at < events.len()).then(|| events.split_at(at))
}

/// The delivered events that can be written, and those that cannot: of each entity, from the first that is locked on. Without the second rule,
/// an event could be repeated that comes before one that is not.
fn before_locked(sent: &[Event], locked: &HashSet<i64>) -> (Vec<Event>, Vec<Event>) {
    let mut stopped: HashSet<&str> = HashSet::new();
    let (mut written, mut left) = (Vec::new(), Vec::new());
    for event in sent {
        if locked.contains(&event.id) || stopped.contains(&*event.entity_key) {
            stopped.insert(&event.entity_key);
            left.push(event.clone());
        } else {
            written.push(event.clone());
        }
    }
    (written, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event((id, key): (i64, &str)) -> Event {
        Event::unheld(id, key, "t", "k", None)
    }

    fn ids(events: &[Event]) -> Vec<i64> {
        events.iter().map(|event| event.id).collect()
    }

    #[test]
    fn what_is_behind_a_locked_event_of_its_entity_is_left_too() {
        let sent = [(1, "a"), (2, "a"), (3, "b"), (4, "a"), (5, "b")].map(event);
        let (written, left) = before_locked(&sent, &HashSet::from([2]));
        assert_eq!((ids(&written), ids(&left)), (vec![1, 3, 5], vec![2, 4]));
    }

    #[test]
    fn an_entity_is_in_one_half() {
        let of = |keys: &[&'static str]| {
            let events: Vec<Event> = keys.iter().zip(1..).map(|(key, id)| event((id, key))).collect();
            halves(&events).map(|(one, other)| (ids(one), ids(other)))
        };
        assert_eq!(of(&["a", "b", "c", "d"]), Some((vec![1, 2], vec![3, 4])));
        assert_eq!(of(&["a", "a", "a", "b"]), Some((vec![1, 2, 3], vec![4])));
        assert_eq!(of(&["a", "b", "b", "b"]), Some((vec![1], vec![2, 3, 4])));
        assert_eq!(of(&["a", "a"]), None);
        assert_eq!(of(&[]), None);
    }
}
