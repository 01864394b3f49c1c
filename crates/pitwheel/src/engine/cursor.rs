//! The positions from which a node's claims read.
//!
//! Finished jobs leave dead index entries behind, and running jobs stay in the index. A claim that reads from the start of the
//! index passes all of them, and more of them the longer a transaction keeps vacuum from removing them. So a node remembers, for
//! each level (a priority of a queue), the **bound**: how far it has claimed. Jobs can still appear below the bound: from a
//! transaction that commits late, or after a lock that a claim skipped was rolled back. So once a second the node looks back from
//! the **floor** to the bound. If a job waits there that is not locked, the bound moves back to it.
//!
//! The floor keeps the look back cheap: below it no job can appear any more. A job's `run_at` is never before the time of its
//! insert, and every later write that lets a job wait again sets a new one. So once all transactions that were open when the
//! bound was at a position have ended, and a look back finds nothing, that position becomes the floor. Claims and looks back read
//! no level of a priority that no job has had; its bound moves with the others, its floor stays.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::job::claim::{Claimed, QueueSlots};

/// How much later than its `run_at` a job may get its transaction id: the time between reading the clock and writing the first
/// row of the same statement, with a margin for a backend that was not scheduled in between.
const MARGIN: Duration = Duration::from_secs(2);
/// All priorities. Levels are read from the highest to the lowest.
const PRIORITIES: std::ops::RangeInclusive<i16> = -9..=9;

/// A position in the order of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The time at which a job is due.
    pub run_at: SystemTime,
    /// Its id, which orders jobs that are due at the same time.
    pub id: i64,
}

impl Position {
    const BOTTOM: Position = Position { run_at: UNIX_EPOCH, id: 0 };

    fn before(self) -> Position {
        Position { id: self.id - 1, ..self }
    }
}

/// The bound and the floor of every level of a node's queues.
pub struct Cursor {
    order: Arc<LevelOrder>,
    /// In this order.
    levels: Vec<Level>,
    last_seen_at: SystemTime,
    /// When the server started that answered the last look back.
    server_started_at: Option<SystemTime>,
    lowered: u64,
}

/// The order of levels: the levels of a queue follow each other, from the highest priority to the lowest.
pub(crate) struct LevelOrder {
    /// The index of the first level of each queue. A node may have a thousand queues.
    pub(crate) first: HashMap<String, usize>,
    /// The queue of each level.
    pub(crate) queues: Vec<String>,
    /// The priority of each level.
    pub(crate) priorities: Vec<i16>,
}

/// One position per level, as columns for `unnest`.
pub struct Bounds {
    /// How often bounds had been lowered when these were read.
    lowered: u64,
    pub(crate) order: Arc<LevelOrder>,
    pub(crate) run_ats: Vec<SystemTime>,
    pub(crate) ids: Vec<i64>,
}

impl Bounds {
    /// The index of a queue's first level, counted from 1; the others follow it.
    pub(crate) fn first_level(&self, queue: &str) -> i32 {
        let first = self.order.first.get(queue).copied().unwrap_or_default();
        i32::try_from(first + 1).unwrap_or(1)
    }
}

impl LevelOrder {
    fn of<'a>(queues: impl Iterator<Item = &'a str>) -> LevelOrder {
        let mut order = LevelOrder { first: HashMap::new(), queues: Vec::new(), priorities: Vec::new() };
        for queue in queues {
            order.first.insert(queue.to_owned(), order.queues.len());
            order.priorities.extend(PRIORITIES.rev());
            order.queues.resize(order.priorities.len(), queue.to_owned());
        }
        order
    }

    /// Where the levels of a queue are.
    fn levels_of(&self, queue: &str) -> std::ops::Range<usize> {
        self.first.get(queue).map_or(0..0, |&first| first..first + PRIORITIES.count())
    }

    /// Where the level of a job is.
    fn level_of(&self, queue: &str, priority: i16) -> Option<usize> {
        self.levels_of(queue).find(|&at| self.priorities[at] == priority)
    }
}

struct Level {
    bound: Position,
    /// Which time that bounds were lowered was the last one for this level. A claim that had begun before must not raise the
    /// bound again: it did not read what was found.
    lowered: u64,
    floor: Position,
    mark: Option<Mark>,
}

/// A candidate for the floor, and a transaction id that was assigned when it was taken: transactions that were open then have lower
/// ones.
struct Mark {
    position: Position,
    xid: i64,
}

/// The server's clock and transaction ids at a look back.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot {
    pub(crate) seen_at: SystemTime,
    pub(crate) oldest_xid: i64,
    /// The id of the look back itself.
    pub(crate) own_xid: i64,
    pub(crate) server_started_at: SystemTime,
}

/// What a look back found.
pub struct LookedBack {
    pub(crate) snapshot: Snapshot,
    /// What it found in each level, in their order.
    pub(crate) levels: Vec<LevelLook>,
    /// Whether a suspect is due that could be claimed.
    pub suspects: bool,
}

/// What a look back found in a level.
#[derive(Clone, Copy)]
pub(crate) enum LevelLook {
    /// It was not read, because its priority counts as one that no job has had.
    NotRead,
    /// No job waits between the floor and the bound.
    Empty,
    /// The first job that waits there, and the first one that is not locked.
    Behind { first: Position, free: Option<Position> },
}

impl Cursor {
    /// All levels are read from the start.
    pub fn new<'a>(queues: impl Iterator<Item = &'a str>) -> Cursor {
        let order = LevelOrder::of(queues);
        let level =
            |_: &i16| Level { bound: Position::BOTTOM, lowered: 0, floor: Position::BOTTOM, mark: None };
        let levels = order.priorities.iter().map(level).collect();
        let order = Arc::new(order);
        Cursor { order, levels, last_seen_at: UNIX_EPOCH, server_started_at: None, lowered: 0 }
    }

    /// Moves the bounds on after a claim that read from `bounds` for these slots.
    pub fn after(
        &mut self,
        bounds: &Bounds,
        slots_by_queue: &[QueueSlots],
        claimed: &[Claimed],
        now: SystemTime,
    ) {
        let mut found: HashMap<&str, usize> = HashMap::new();
        for job in claimed {
            *found.entry(&job.queue).or_default() += 1;
            if let Some(at) = self.order.level_of(&job.queue, job.priority) {
                let position = Position { run_at: job.run_at, id: job.claim.id };
                self.levels[at].raise(position, bounds.lowered);
            }
        }
        for asked in slots_by_queue {
            if found.get(&*asked.queue).is_none_or(|&found| found < asked.slots) {
                self.emptied(&asked.queue, now, bounds.lowered);
            }
        }
    }

    /// A claim did not fill its slots of this queue: whatever is due there is held, locked or of other kinds. Without this, every
    /// poll would pass all jobs of kinds that only other workers handle.
    fn emptied(&mut self, queue: &str, now: SystemTime, lowered: u64) {
        let reached = Position { run_at: now - MARGIN, id: 0 };
        let levels = &mut self.levels[self.order.levels_of(queue)];
        levels.iter_mut().for_each(|level| level.raise(reached, lowered));
    }

    /// The positions from which claims read.
    pub fn bounds(&self) -> Bounds {
        self.columns(|level| level.bound)
    }

    /// The positions from which looks back read. `deep`: from the start, in case a job appeared where it should not.
    pub fn floors(&self, deep: bool) -> Bounds {
        self.columns(|level| if deep { Position::BOTTOM } else { level.floor })
    }

    fn columns(&self, position: impl Fn(&Level) -> Position) -> Bounds {
        let (run_ats, ids) = self.levels.iter().map(position).map(|at| (at.run_at, at.id)).unzip();
        Bounds { lowered: self.lowered, order: self.order.clone(), run_ats, ids }
    }

    /// The result of a look back, in the order of the levels.
    pub fn looked_back(&mut self, found: &LookedBack) {
        let snapshot = found.snapshot;
        let before = self.server_started_at.replace(snapshot.server_started_at);
        if snapshot.seen_at < self.last_seen_at || before.is_some_and(|at| at != snapshot.server_started_at) {
            self.start_over();
        }
        self.last_seen_at = snapshot.seen_at;
        self.lowered += 1;
        for (level, look) in self.levels.iter_mut().zip(&found.levels) {
            level.looked_back(snapshot, *look, self.lowered);
        }
    }

    /// All levels are read from the start again: the clock went back, or another server answers, in which claims may be undone.
    fn start_over(&mut self) {
        self.lowered += 1;
        for level in &mut self.levels {
            (level.bound, level.floor, level.mark) = (Position::BOTTOM, Position::BOTTOM, None);
            level.lowered = self.lowered;
        }
    }
}

impl Level {
    /// After a claim that had read bounds lowered so often.
    fn raise(&mut self, position: Position, lowered: u64) {
        if lowered >= self.lowered {
            self.bound = self.bound.max(position);
        }
    }

    fn looked_back(&mut self, snapshot: Snapshot, look: LevelLook, lowered: u64) {
        match look {
            LevelLook::NotRead => return,
            LevelLook::Empty => {}
            LevelLook::Behind { first, free } => {
                (self.floor, self.mark) = (self.floor.min(first.before()), None);
                // Claims skip what is locked. From there they would pass all dead entries up to the bound, again and again.
                if let Some(free) = free {
                    (self.bound, self.lowered) = (self.bound.min(free.before()), lowered);
                }
                return;
            }
        }
        match &self.mark {
            Some(mark) if snapshot.oldest_xid >= mark.xid => {
                self.floor = self.floor.max(mark.position);
                self.mark = None;
            }
            Some(_) => return,
            None => {}
        }
        let settled = Position { run_at: snapshot.seen_at - MARGIN, id: 0 };
        let position = self.bound.min(settled);
        if position > self.floor {
            self.mark = Some(Mark { position, xid: snapshot.own_xid });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Position {
        Position { run_at: UNIX_EPOCH + Duration::from_secs(seconds), id: 1 }
    }

    fn snapshot(seconds: u64, oldest_xid: i64, own_xid: i64) -> Snapshot {
        Snapshot { seen_at: at(seconds).run_at, oldest_xid, own_xid, server_started_at: UNIX_EPOCH }
    }

    /// A cursor whose claims have read up to a position of priority 0.
    fn cursor_at(position: Position) -> Cursor {
        let mut cursor = Cursor::new(["q"].into_iter());
        raise(&mut cursor, position, 0);
        cursor
    }

    fn raise(cursor: &mut Cursor, position: Position, lowered: u64) {
        let at = cursor.order.level_of("q", 0).unwrap();
        cursor.levels[at].raise(position, lowered);
    }

    fn level(cursor: &Cursor) -> &Level {
        &cursor.levels[cursor.order.level_of("q", 0).unwrap()]
    }

    fn look(cursor: &mut Cursor, snapshot: Snapshot, first: Option<Position>) {
        let levels = cursor.order.priorities.iter().map(|priority| match first.filter(|_| *priority == 0) {
            Some(first) => LevelLook::Behind { first, free: Some(first) },
            None => LevelLook::Empty,
        });
        let levels = levels.collect();
        cursor.looked_back(&LookedBack { snapshot, levels, suspects: false });
    }

    #[test]
    fn a_job_left_behind_moves_the_bound_back_to_it() {
        let mut cursor = cursor_at(at(100));
        look(&mut cursor, snapshot(200, 5, 6), Some(at(50)));
        assert!(level(&cursor).bound < at(50));
        assert!(level(&cursor).bound > at(49));
    }

    #[test]
    fn the_floor_rises_only_when_every_transaction_of_its_time_has_ended() {
        let mut cursor = cursor_at(at(100));
        look(&mut cursor, snapshot(200, 5, 10), None);
        look(&mut cursor, snapshot(201, 9, 20), None);
        assert_eq!(level(&cursor).floor, Position::BOTTOM);
        look(&mut cursor, snapshot(202, 10, 30), None);
        assert_eq!(level(&cursor).floor, at(100));
    }

    #[test]
    fn the_floor_keeps_its_margin_behind_the_clock() {
        let mut cursor = cursor_at(at(199));
        look(&mut cursor, snapshot(200, 5, 10), None);
        look(&mut cursor, snapshot(201, 10, 10), None);
        assert_eq!(level(&cursor).floor.run_at, at(198).run_at);
    }

    #[test]
    fn a_job_left_behind_keeps_the_floor_down() {
        let mut cursor = cursor_at(at(100));
        look(&mut cursor, snapshot(200, 5, 10), None);
        look(&mut cursor, snapshot(201, 10, 20), Some(at(50)));
        assert_eq!(level(&cursor).floor, Position::BOTTOM);
    }

    #[test]
    fn a_clock_that_goes_back_starts_over() {
        let mut cursor = cursor_at(at(100));
        look(&mut cursor, snapshot(200, 5, 5), None);
        look(&mut cursor, snapshot(201, 5, 5), None);
        assert_eq!(level(&cursor).floor, at(100));
        look(&mut cursor, snapshot(150, 6, 6), None);
        assert_eq!((level(&cursor).floor, level(&cursor).bound), (Position::BOTTOM, Position::BOTTOM));
    }

    #[test]
    fn another_server_starts_over() {
        let mut cursor = cursor_at(at(100));
        look(&mut cursor, snapshot(200, 5, 5), None);
        look(&mut cursor, snapshot(201, 5, 5), None);
        assert_eq!(level(&cursor).floor, at(100));
        look(&mut cursor, Snapshot { server_started_at: at(1).run_at, ..snapshot(202, 6, 6) }, None);
        assert_eq!((level(&cursor).floor, level(&cursor).bound), (Position::BOTTOM, Position::BOTTOM));
        let lowered = cursor.lowered;
        raise(&mut cursor, at(150), lowered);
        look(&mut cursor, Snapshot { server_started_at: at(1).run_at, ..snapshot(203, 7, 7) }, None);
        assert_eq!(level(&cursor).bound, at(150), "once for each server");
    }

    #[test]
    fn a_claim_that_began_before_a_job_was_found_does_not_move_the_bound_past_it() {
        let mut cursor = cursor_at(at(100));
        let before = cursor.bounds().lowered;
        look(&mut cursor, snapshot(200, 5, 6), Some(at(50)));
        raise(&mut cursor, at(120), before);
        assert!(level(&cursor).bound < at(50));
        let after = cursor.bounds().lowered;
        raise(&mut cursor, at(120), after);
        assert_eq!(level(&cursor).bound, at(120));
    }

    #[test]
    fn a_queue_has_its_levels_in_one_piece() {
        let bounds = Cursor::new(["a", "b"].into_iter()).bounds();
        assert_eq!((bounds.first_level("a"), bounds.first_level("b")), (1, 20));
        assert!(bounds.order.queues[19..38].iter().all(|queue| queue == "b"));
        assert_eq!(bounds.order.priorities[19..22], [9, 8, 7]);
    }
}
