//! Which relay held which entities, and until when: each relay process writes it down, and a test looks whether two held one at a time.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use pitwheel::Error;
use pitwheel::engine::outbox::{Acknowledged, Batch, Event, Strategy};
use serde_json::Value;

/// The header that names the relay process and its batch.
pub(crate) const BATCH: &str = "batch";

/// What a process holds, in a file. Each line is written before what it says becomes true for others, so that nothing is missing after a kill.
pub(crate) struct HoldingLog {
    file: File,
}

impl HoldingLog {
    pub(crate) fn create(folder: &Path, name: &str) -> Result<HoldingLog> {
        Ok(HoldingLog { file: File::create(folder.join(name))? })
    }

    /// These entities are held from now on, until the deadline.
    pub(crate) fn begin<'a>(&mut self, deadline: Instant, keys: impl Iterator<Item = &'a str>) {
        let keys: Vec<&str> = keys.collect();
        self.write(&format!(
            "begin {} {} {}\n",
            nanos(SystemTime::now()),
            on_clock(deadline),
            keys.join(" ")
        ));
    }

    /// They are held until another deadline.
    fn renew(&mut self, deadline: Instant) {
        self.write(&format!("renew {}\n", on_clock(deadline)));
    }

    /// They are not held any more.
    pub(crate) fn end(&mut self) {
        self.write(&format!("end {}\n", nanos(SystemTime::now())));
    }

    fn write(&mut self, line: &str) {
        self.file.write_all(line.as_bytes()).expect("the log can be written");
    }
}

/// An instant on the clock that all processes share; now, if it has passed. A pause in between makes it earlier.
fn on_clock(deadline: Instant) -> u128 {
    let now = SystemTime::now();
    nanos(now + deadline.saturating_duration_since(Instant::now()))
}

fn nanos(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos()
}

/// A strategy that writes down what is held: from each take until the events are acknowledged or given up, or the deadline.
pub(crate) struct Logged<S> {
    strategy: S,
    log: HoldingLog,
    batches: usize,
}

impl<S: Strategy> Logged<S> {
    pub(crate) fn new(strategy: S, folder: &Path) -> Result<Logged<S>> {
        let log = HoldingLog::create(folder, &std::process::id().to_string())?;
        Ok(Logged { strategy, log, batches: 0 })
    }
}

impl<S: Strategy> Strategy for Logged<S> {
    async fn take(&mut self, limit: usize) -> Result<Batch, Error> {
        self.log.end();
        let mut batch = self.strategy.take(limit).await?;
        self.log.begin(batch.deadline, batch.events.iter().map(|event| &*event.entity_key));
        self.batches += 1;
        let name = Value::from(format!("{}-{}", std::process::id(), self.batches));
        for event in &mut batch.events {
            event.headers.get_or_insert_default().insert(BATCH.to_owned(), name.clone());
        }
        Ok(batch)
    }

    async fn acknowledge(&mut self, sent: &[Event]) -> Result<Acknowledged, Error> {
        if !sent.is_empty() {
            self.log.end();
            return self.strategy.acknowledge(sent).await;
        }
        let renewed = self.strategy.acknowledge(sent).await?;
        if renewed.deadline > Instant::now() {
            self.log.renew(renewed.deadline);
        } else {
            self.log.end(); // the lease was lost, and the relay stops now, if it has not passed its deadline before
        }
        Ok(renewed)
    }

    async fn park(&mut self, event: &Event, reason: &str) -> Result<bool, Error> {
        self.strategy.park(event, reason).await
    }

    fn postpone(&mut self, event: &Event, until: Instant) -> bool {
        self.strategy.postpone(event, until)
    }

    fn holds(&self, event: &Event) -> bool {
        self.strategy.holds(event)
    }

    async fn release(&mut self) -> Result<(), Error> {
        self.log.end();
        self.strategy.release().await
    }
}

/// From when until when an entity was held, and by which process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holding {
    from: u128,
    until: u128,
    process: usize,
}

/// What all processes held, by entity.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    entities: HashMap<String, Vec<Holding>>,
    /// How often a process took entities and had passed its deadline by then: it was stopped meanwhile.
    pub(crate) too_late: usize,
}

impl Holdings {
    /// Reads the files of a folder.
    pub(crate) fn read(folder: &Path) -> Result<Holdings> {
        let mut holdings = Holdings::default();
        for (process, file) in fs::read_dir(folder)?.enumerate() {
            let path = file?.path();
            holdings.add(process, &fs::read_to_string(&path)?).with_context(|| path.display().to_string())?;
        }
        Ok(holdings)
    }

    fn add(&mut self, process: usize, log: &str) -> Result<()> {
        let mut held: Option<(Holding, BTreeSet<&str>)> = None;
        for line in log.lines() {
            let mut words = line.split(' ');
            let (what, first) = (words.next(), words.next().context("no time")?.parse()?);
            match (what, &mut held) {
                (Some("begin"), None) => {
                    let until = words.next().context("no deadline")?.parse()?;
                    let keys = words.filter(|key| !key.is_empty()).collect();
                    held = Some((Holding { from: first, until, process }, keys));
                }
                (Some("renew"), Some((holding, _))) => holding.until = first,
                (Some("end"), _) => self.close(held.take(), first),
                (Some("renew"), None) => {}
                _ => bail!("a line out of place: {line}"),
            }
        }
        self.close(held, u128::MAX);
        Ok(())
    }

    fn close(&mut self, held: Option<(Holding, BTreeSet<&str>)>, at: u128) {
        let Some((holding, keys)) = held else { return };
        let holding = Holding { until: holding.until.min(at), ..holding };
        if holding.until <= holding.from {
            self.too_late += keys.len();
            return;
        }
        for key in keys {
            self.entities.entry(key.to_owned()).or_default().push(holding);
        }
    }

    /// How often an entity was held.
    pub(crate) fn count(&self) -> usize {
        self.entities.values().map(Vec::len).sum()
    }

    /// The entities that were taken while another process held them, each with both holdings.
    pub(crate) fn held_by_two(&self) -> Vec<(&str, Holding, Holding)> {
        let mut found = Vec::new();
        for (key, holdings) in &self.entities {
            found.extend(overlaps(holdings).into_iter().map(|(first, second)| (&**key, first, second)));
        }
        found
    }
}

/// Each holding that began while another process held the entity, behind that one.
fn overlaps(holdings: &[Holding]) -> Vec<(Holding, Holding)> {
    let mut sorted = holdings.to_vec();
    sorted.sort_unstable();
    let holder = |at: usize, one: &Holding| {
        let mut earlier = sorted[..at].iter();
        earlier.find(|other| other.process != one.process && other.until > one.from).copied()
    };
    sorted.iter().enumerate().filter_map(|(at, one)| Some((holder(at, one)?, *one))).collect()
}

/// The batches that go on after another process has sent events of the entity. `batches` are the headers of the entity's messages, in the
/// order of the log.
pub(crate) fn interrupted<'a>(batches: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let (mut last_at, mut changed_at, mut process) = (HashMap::new(), 0, "");
    let mut interrupted = Vec::new();
    for (at, batch) in batches.enumerate() {
        let sender = batch.split('-').next().unwrap_or_default();
        if sender != process {
            (process, changed_at) = (sender, at);
        }
        if last_at.insert(batch, at).is_some_and(|last| last < changed_at) {
            interrupted.push(batch);
        }
    }
    interrupted
}

mod tests {
    use super::*;

    fn held_by_two(logs: &[&str]) -> usize {
        let mut holdings = Holdings::default();
        logs.iter().enumerate().for_each(|(process, log)| holdings.add(process, log).expect("a log"));
        holdings.held_by_two().len()
    }

    #[test]
    fn one_after_the_other_is_allowed_and_at_a_time_is_not() {
        assert_eq!(held_by_two(&["end 1\nbegin 10 50 a b\nend 20\n", "begin 20 60 a\nend 30\n"]), 0);
        assert_eq!(held_by_two(&["begin 10 50 a b\nend 21\n", "begin 20 60 a\nend 30\n"]), 1);
        assert_eq!(held_by_two(&["begin 10 50 a\nend 21\n", "begin 20 60 b\nend 30\n"]), 0);
        assert_eq!(held_by_two(&["begin 10 50 \nend 21\n", "begin 20 60 \nend 30\n"]), 0);
    }

    #[test]
    fn a_process_that_is_stopped_or_killed_holds_until_its_deadline() {
        assert_eq!(held_by_two(&["begin 10 50 a\n", "begin 50 90 a\nend 60\n"]), 0);
        assert_eq!(held_by_two(&["begin 10 50 a\n", "begin 40 90 a\nend 60\n"]), 1);
        assert_eq!(held_by_two(&["begin 10 50 a\nrenew 70\nend 99\n", "begin 60 90 a\nend 80\n"]), 1);
        assert_eq!(held_by_two(&["begin 10 50 a\nend 99\n", "begin 60 90 a\nend 80\n"]), 0);
        assert_eq!(held_by_two(&["begin 70 69 a\nend 99\n", "begin 60 90 a\nend 80\n"]), 0);
    }

    #[test]
    fn a_batch_that_goes_on_behind_another_process_is_found() {
        assert!(interrupted(["1-1", "1-1", "1-2", "2-1", "1-3", "2-2"].into_iter()).is_empty());
        assert_eq!(interrupted(["1-1", "2-1", "1-1", "1-1"].into_iter()), ["1-1"]);
        assert!(interrupted(["1-1", "1-2", "1-1"].into_iter()).is_empty());
    }
}
