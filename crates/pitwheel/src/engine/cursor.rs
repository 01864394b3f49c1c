//! The positions from which a node's claims read.
//!
//! Finished jobs leave dead index entries behind, and running jobs stay in the index. A claim that reads from the start of the
//! index passes all of them, and more of them the longer a transaction keeps vacuum from removing them. So a node remembers, for
//! each level (a priority of a queue), the **bound**: how far it has claimed. Jobs can still appear below the bound: from a
//! transaction that commits late, or after a lock that a claim skipped was rolled back. So once a second the node looks back from
//! the **floor** to the bound. If a job waits there that is not locked, the bound moves back to it.
//!
//! At first the bound is the present, so no claim ever reads from the start of the index: the first look back finds what waits. A look
//! that takes too long is made in slices, from the bound down: claims go on meanwhile, and what a slice has found is claimed at once.
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
/// How many times shorter the slices become when a look took too long.
const SLICES: u32 = 16;
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
    /// The looks of this pass read from the start instead of the floors.
    deep: bool,
    /// How much of a level a look reads at most.
    slice: Duration,
}

/// What a look back reads: the jobs above the first positions, up to the second ones.
pub struct Look {
    pub(crate) from: Bounds,
    pub(crate) to: Bounds,
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

    fn positions(&self) -> impl Iterator<Item = Position> {
        self.run_ats.iter().zip(&self.ids).map(|(&run_at, &id)| Position { run_at, id })
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
    pass: Option<Pass>,
}

/// A look back in slices, of which some are left.
#[derive(Clone, Copy)]
struct Pass {
    /// The bound when it began.
    bound: Position,
    /// The slices down to here were read.
    read: Position,
    /// The oldest transaction that was open at the first slice.
    oldest_xid: i64,
    /// A job waits in one of them.
    found: bool,
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
    /// Claims read nothing before the first look back has told the time.
    pub fn new<'a>(queues: impl Iterator<Item = &'a str>) -> Cursor {
        let order = LevelOrder::of(queues);
        let levels = order.priorities.iter().map(|_| Level::new(Position::BOTTOM, 0)).collect();
        Cursor {
            order: Arc::new(order),
            levels,
            last_seen_at: UNIX_EPOCH,
            server_started_at: None,
            lowered: 0,
            deep: false,
            slice: Duration::MAX,
        }
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

    /// Whether a look back has slices left.
    pub(crate) fn is_in_pass(&self) -> bool {
        self.levels.iter().any(|level| level.pass.is_some())
    }

    /// What the next look back reads. `deep`: from the start, in case a job appeared where it should not; the slices that are left of the
    /// last one come first.
    pub fn next_look(&mut self, deep: bool) -> Look {
        let goes_on = self.is_in_pass();
        self.deep = if goes_on { self.deep } else { deep };
        let from = self.columns(|level| match &level.pass {
            None if goes_on => level.bound,
            _ => level.slice(self.deep, self.slice),
        });
        Look { from, to: self.columns(Level::to_look_at) }
    }

    /// A look back took too long, and was given up.
    pub(crate) fn took_too_long(&mut self, look: &Look) {
        let read = look.to.run_ats.iter().zip(&look.from.run_ats);
        let longest = read.filter_map(|(to, from)| to.duration_since(*from).ok()).max().unwrap_or_default();
        self.slice = (longest / SLICES).max(MARGIN);
    }

    /// A look back was short: the next one may read more.
    pub(crate) fn took_little(&mut self) {
        self.slice = self.slice.saturating_mul(2);
    }

    fn columns(&self, position: impl Fn(&Level) -> Position) -> Bounds {
        let (run_ats, ids) = self.levels.iter().map(position).map(|at| (at.run_at, at.id)).unzip();
        Bounds { lowered: self.lowered, order: self.order.clone(), run_ats, ids }
    }

    /// The result of a look back, in the order of the levels. Returns whether to look again at once: everything is to be read.
    pub fn looked_back(&mut self, look: &Look, found: &LookedBack) -> bool {
        let snapshot = found.snapshot;
        let before = self.server_started_at.replace(snapshot.server_started_at);
        // The first look, a clock that went back, or another server, in which claims may be undone.
        let starts = snapshot.seen_at < self.last_seen_at || before != Some(snapshot.server_started_at);
        self.last_seen_at = snapshot.seen_at;
        self.lowered += 1;
        if starts {
            let present = Position { run_at: snapshot.seen_at - MARGIN, id: 0 };
            self.levels.iter_mut().for_each(|level| *level = Level::new(present, self.lowered));
            return true;
        }
        let read = look.from.positions().zip(look.to.positions());
        for ((level, look), (from, to)) in self.levels.iter_mut().zip(&found.levels).zip(read) {
            if from < to {
                let first = Pass { bound: to, read: to, oldest_xid: snapshot.oldest_xid, found: false };
                let pass = Pass { read: from, ..level.pass.unwrap_or(first) };
                level.looked_back(snapshot, pass, *look, self.deep, self.lowered);
            }
        }
        false
    }
}

impl Level {
    /// Nothing was looked at yet.
    fn new(bound: Position, lowered: u64) -> Level {
        Level { bound, lowered, floor: Position::BOTTOM, mark: None, pass: None }
    }

    /// After a claim that had read bounds lowered so often.
    fn raise(&mut self, position: Position, lowered: u64) {
        if lowered >= self.lowered {
            self.bound = self.bound.max(position);
        }
    }

    /// Up to where the next look reads.
    fn to_look_at(&self) -> Position {
        self.pass.as_ref().map_or(self.bound, |pass| pass.read)
    }

    /// Above which position the next look reads.
    fn slice(&self, deep: bool, slice: Duration) -> Position {
        let to = self.to_look_at();
        let run_at = to.run_at.checked_sub(slice).unwrap_or(UNIX_EPOCH).max(UNIX_EPOCH);
        Position { run_at, id: 0 }.max(self.lowest(deep)).min(to)
    }

    /// Above which position a pass reads.
    fn lowest(&self, deep: bool) -> Position {
        if deep { Position::BOTTOM } else { self.floor }
    }

    /// A look has read one more slice of this pass.
    fn looked_back(&mut self, snapshot: Snapshot, pass: Pass, look: LevelLook, deep: bool, lowered: u64) {
        let is_last = pass.read <= self.lowest(deep);
        let pass = Pass { found: pass.found || matches!(look, LevelLook::Behind { .. }), ..pass };
        self.pass = (!is_last).then_some(pass);
        match look {
            LevelLook::NotRead => self.pass = None,
            LevelLook::Empty if is_last && !pass.found => self.found_nothing(snapshot, pass),
            LevelLook::Empty => {}
            LevelLook::Behind { first, free } => {
                (self.floor, self.mark) = (self.floor.min(first.before()), None);
                // Claims skip what is locked. From there they would pass all dead entries up to the bound, again and again.
                if let Some(free) = free {
                    (self.bound, self.lowered) = (self.bound.min(free.before()), lowered);
                }
            }
        }
    }

    /// A pass has found no job between the floor and the bound that it began with.
    fn found_nothing(&mut self, snapshot: Snapshot, pass: Pass) {
        match &self.mark {
            Some(mark) if pass.oldest_xid >= mark.xid => {
                self.floor = self.floor.max(mark.position.min(pass.bound));
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
mod tests;
