//! What a relay remembers of a shard that it holds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use crate::engine::outbox::ownership::HeldShard;

/// Entities of a shard whose last delivered id is remembered, to count events that came late. Beyond it, all are forgotten.
const REMEMBERED_MAX: usize = 10_000;
/// Entities of a shard that are left out at a time: every read compares its events with them, and steps over theirs.
const POSTPONED_MAX: usize = 100;

/// A shard that the relay holds.
pub(super) struct Shard {
    pub(super) lease: Arc<str>,
    pub(super) restart: i64,
    /// No event with an id up to this is left, or can still appear.
    pub(super) floor: i64,
    /// The last id that the last read returned; of a read that returned none, that of the one before.
    read_up_to: i64,
    /// Events that were taken and are neither acknowledged nor parked, each with its entity.
    taken: BTreeMap<i64, String>,
    parked: HashSet<String>,
    /// Entities that reads leave out, each until when.
    postponed: HashMap<String, Instant>,
    /// Whether the last read left entities out.
    left_out: bool,
    /// The last delivered id of entities.
    delivered: HashMap<String, i64>,
    /// How many events the last read returned, and how many it asked for.
    last_read: (usize, usize),
}

impl Shard {
    pub(super) fn new(held: &HeldShard) -> Shard {
        Shard {
            lease: held.lease.as_str().into(),
            restart: held.restart,
            floor: held.floor,
            read_up_to: held.floor,
            taken: BTreeMap::new(),
            parked: HashSet::new(),
            postponed: HashMap::new(),
            left_out: false,
            delivered: HashMap::new(),
            last_read: (0, 1),
        }
    }

    /// The shard's row, with the floor as it is known here.
    pub(super) fn row(&self, shard: i16) -> HeldShard {
        HeldShard { shard, lease: self.lease.to_string(), floor: self.floor, restart: self.restart }
    }

    /// All events up to this id that were ever seen are gone. While entities are left out, that is known of the floor only: where their
    /// events begin is not, because one may be committed late.
    pub(super) fn bound(&self) -> i64 {
        if self.left_out {
            return self.floor;
        }
        self.taken.first_key_value().map_or(self.read_up_to, |(id, _)| self.read_up_to.min(id - 1))
    }

    /// Takes the events that a read returned, of which it asked for `asked`, in the order of their ids. Every read begins at the floor.
    /// If it asked for fewer than the one before, some that were taken are not among them, and are read again later.
    pub(super) fn read<'a>(&mut self, asked: usize, events: impl Iterator<Item = (i64, &'a str)>) -> usize {
        self.taken.clear();
        self.left_out = !self.postponed.is_empty();
        let mut late = 0;
        for (id, entity) in events {
            self.read_up_to = id;
            late += usize::from(self.delivered.get(entity).is_some_and(|last| *last > id));
            self.taken.insert(id, entity.to_owned());
        }
        self.last_read = (self.taken.len(), asked);
        late
    }

    /// An event was delivered.
    pub(super) fn delivered(&mut self, id: i64) {
        let Some(entity) = self.taken.remove(&id) else { return };
        if self.delivered.len() >= REMEMBERED_MAX {
            self.delivered.clear();
        }
        let last = self.delivered.entry(entity).or_insert(id);
        *last = id.max(*last);
    }

    /// The events of an entity that were taken, from this id on.
    pub(super) fn taken_from(&self, entity: &str, id: i64) -> Vec<i64> {
        let taken = self.taken.range(id..).filter(|(_, key)| *key == entity);
        taken.map(|(id, _)| *id).collect()
    }

    /// The events that were taken and belong to parked entities.
    pub(super) fn taken_of_parked(&self) -> Vec<i64> {
        if self.parked.is_empty() {
            return Vec::new();
        }
        self.taken.iter().filter(|(_, key)| self.parked.contains(*key)).map(|(id, _)| *id).collect()
    }

    /// These events were moved to those of parked entities.
    pub(super) fn moved(&mut self, ids: &[i64]) {
        ids.iter().for_each(|id| drop(self.taken.remove(id)));
    }

    pub(super) fn park(&mut self, entity: &str) {
        self.parked.insert(entity.to_owned());
    }

    pub(super) fn is_parked(&self, entity: &str) -> bool {
        self.parked.contains(entity)
    }

    /// Leaves an entity out of reads until then. False: too many are.
    pub(super) fn postpone(&mut self, entity: &str, until: Instant) -> bool {
        let has_room = self.postponed.len() < POSTPONED_MAX || self.postponed.contains_key(entity);
        if has_room {
            self.postponed.insert(entity.to_owned(), until);
        }
        has_room
    }

    /// Leaves parked entities out of reads until then whose events were taken, as far as there is room.
    pub(super) fn postpone_parked(&mut self, until: Instant) {
        let taken: HashSet<String> =
            self.taken.values().filter(|key| self.parked.contains(*key)).cloned().collect();
        let _ = taken.iter().all(|entity| self.postpone(entity, until));
    }

    /// The entities that the next read leaves out.
    pub(super) fn leave_out(&mut self, now: Instant) -> impl Iterator<Item = &String> {
        self.postponed.retain(|_, until| *until > now);
        self.postponed.keys()
    }

    /// A look back found an event at or below the bound.
    pub(super) fn found_late(&mut self, id: i64) {
        self.read_up_to = self.read_up_to.min(id - 1);
    }

    /// A look back was finished: no event can appear up to `floor`, and those that had appeared were found.
    pub(super) fn raise_floor(&mut self, floor: i64) {
        self.floor = self.floor.max(floor.min(self.bound()));
    }

    /// Whether the last read returned as many events as it asked for.
    fn is_full(&self) -> bool {
        self.last_read.0 >= self.last_read.1
    }
}

/// How many events to read of each shard: an equal part of `limit`; and what shards with few events leave goes to those that had as
/// many as were asked for. At most twice the limit together.
pub(super) fn quotas<'a>(limit: usize, shards: impl Iterator<Item = &'a Shard> + Clone) -> Vec<i64> {
    let count = shards.clone().count().max(1);
    let equal = (limit / count).max(1);
    let (full, others): (Vec<&Shard>, Vec<&Shard>) = shards.clone().partition(|shard| shard.is_full());
    let used: usize = others.iter().map(|shard| shard.last_read.0).sum();
    let of_full = (limit.saturating_sub(used) / full.len().max(1)).max(equal);
    shards.map(|shard| if shard.is_full() { of_full } else { equal } as i64).collect()
}

/// Between which ids an event can have appeared below what was read: the lowest floor and the highest bound. A shard that has read nothing
/// above its floor does not count: one that never had an event has the floor 0.
pub(super) fn span<'a>(shards: impl Iterator<Item = &'a Shard>) -> (i64, i64) {
    let spans = shards.map(|shard| (shard.floor, shard.bound())).filter(|(floor, bound)| floor < bound);
    spans.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn shard() -> Shard {
        Shard::new(&HeldShard { shard: 1, lease: "lease".to_owned(), floor: 10, restart: 0 })
    }

    fn read(shard: &mut Shard, asked: usize, ids: &[i64]) -> usize {
        shard.read(asked, ids.iter().map(|id| (*id, if id % 2 == 0 { "even" } else { "odd" })))
    }

    #[test]
    fn the_bound_stays_below_what_is_not_acknowledged() {
        let mut shard = shard();
        read(&mut shard, 10, &[11, 12, 13]);
        assert_eq!(shard.bound(), 10);
        shard.delivered(11);
        shard.delivered(13);
        assert_eq!(shard.bound(), 11);
        shard.delivered(12);
        assert_eq!(shard.bound(), 13);
    }

    #[test]
    fn what_a_smaller_read_leaves_out_stays_above_the_bound() {
        let mut shard = shard();
        read(&mut shard, 10, &[11, 12, 13, 14]);
        read(&mut shard, 2, &[11, 12]);
        [11, 12].iter().for_each(|id| shard.delivered(*id));
        assert_eq!(shard.bound(), 12);
        shard.raise_floor(100);
        assert_eq!(shard.floor, 12);
    }

    #[test]
    fn a_late_event_moves_the_bound_back_and_is_counted() {
        let mut shard = shard();
        read(&mut shard, 10, &[12, 14, 15]);
        [12, 14, 15].iter().for_each(|id| shard.delivered(*id));
        shard.found_late(13);
        assert_eq!(shard.bound(), 12);
        assert_eq!(read(&mut shard, 10, &[13]), 1);
        shard.delivered(13);
        assert_eq!(shard.bound(), 13);
    }

    #[test]
    fn the_floor_is_never_above_the_bound() {
        let mut shard = shard();
        read(&mut shard, 10, &[11, 12]);
        shard.delivered(11);
        shard.raise_floor(100);
        assert_eq!(shard.floor, 11);
        shard.delivered(12);
        shard.raise_floor(100);
        assert_eq!(shard.floor, 12);
        shard.raise_floor(5);
        assert_eq!(shard.floor, 12, "it never goes back");
    }

    #[test]
    fn the_floor_waits_for_entities_that_are_left_out() {
        let mut shard = shard();
        read(&mut shard, 10, &[11, 12]);
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(60));
        assert!(shard.postpone("odd", later));
        assert_eq!(shard.leave_out(now).collect::<Vec<_>>(), ["odd"]);
        read(&mut shard, 10, &[12, 14]);
        [12, 14].iter().for_each(|id| shard.delivered(*id));
        shard.raise_floor(100);
        assert_eq!((shard.bound(), shard.floor), (10, 10), "11 waits");

        assert_eq!(shard.leave_out(later).count(), 0);
        assert_eq!(shard.bound(), 10, "until it was read");
        read(&mut shard, 10, &[11, 16]);
        [11, 16].iter().for_each(|id| shard.delivered(*id));
        shard.raise_floor(100);
        assert_eq!(shard.floor, 16);
    }

    #[test]
    fn so_many_entities_are_left_out() {
        let (mut shard, until) = (shard(), Instant::now() + Duration::from_secs(60));
        assert!((0..POSTPONED_MAX).all(|n| shard.postpone(&n.to_string(), until)));
        assert!(!shard.postpone("one more", until));
        assert!(shard.postpone("0", until), "it is one of them");
    }

    #[test]
    fn a_shard_without_events_makes_no_look_back_longer() {
        let empty = Shard::new(&HeldShard { shard: 2, lease: "lease".to_owned(), floor: 0, restart: 0 });
        let mut shards = [shard(), empty];
        assert_eq!(span(shards.iter()), (0, 0), "nothing was read");
        read(&mut shards[0], 10, &[11, 40]);
        [11, 40].iter().for_each(|id| shards[0].delivered(*id));
        assert_eq!(span(shards.iter()), (10, 40));
    }

    #[test]
    fn parked_entities_keep_their_events_together() {
        let mut shard = shard();
        shard.park("odd");
        read(&mut shard, 10, &[11, 12, 13]);
        assert_eq!(shard.taken_of_parked(), [11, 13]);
        assert_eq!(shard.taken_from("odd", 12), [13]);
        shard.moved(&[11, 13]);
        assert_eq!(shard.bound(), 11);
    }

    #[test]
    fn the_floor_waits_for_parked_entities_that_could_not_be_moved() {
        let mut shard = shard();
        shard.park("odd");
        read(&mut shard, 10, &[11, 12]);
        let now = Instant::now();
        shard.postpone_parked(now + Duration::from_secs(60));
        assert_eq!(shard.leave_out(now).collect::<Vec<_>>(), ["odd"]);
        read(&mut shard, 10, &[12]);
        shard.delivered(12);
        shard.raise_floor(100);
        assert_eq!((shard.bound(), shard.floor), (10, 10));
    }

    #[test]
    fn a_shard_with_many_events_gets_what_others_leave() {
        let mut shards = [shard(), shard(), shard(), shard()];
        assert_eq!(quotas(100, shards.iter()), [25; 4]);
        read(&mut shards[0], 2, &[11, 12]);
        assert_eq!(quotas(100, shards.iter()), [100, 25, 25, 25]);
        read(&mut shards[1], 25, &[11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
        read(&mut shards[2], 1, &[11]);
        assert_eq!(quotas(100, shards.iter()), [45, 25, 45, 25]);
        assert_eq!(quotas(2, shards.iter()), [1; 4]);
    }
}
