//! `pitwheel jobs retry`, `cancel`, `delete` and `reschedule`: jobs by their ids, or all that match a filter.

use std::time::{Duration, SystemTime};

use clap::Args;
use indicatif::HumanCount;
use pitwheel::{Change, Changed, Error, Filter, Pitwheel, State};
use serde_json::{Value, json};

use super::filter::FilterArgs;
use crate::database;
use crate::exit::{Code, Stop, engine_code};
use crate::output::{print_json, say, say_error};
use crate::settings::Settings;
use crate::time::{parse_moment, parse_span, relative};

/// Jobs per statement: as many as the engine takes.
const CHUNK: usize = 1000;
/// How often to say how far a long change is, in jobs: every few seconds.
const SAY_EVERY: u64 = 100_000;

/// The jobs to change.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The jobs
    #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
    ids: Vec<i64>,
    #[command(flatten, next_help_heading = "Filter, instead of ids; it must name a state")]
    filter: FilterArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RescheduleArgs {
    /// Due at this time, as 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_moment, conflicts_with = "in")]
    at: Option<SystemTime>,
    /// Due this much later than now, as 30s, 10m, 2h or 1d
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    r#in: Option<Duration>,
    #[command(flatten)]
    which: Which,
}

impl RescheduleArgs {
    pub(super) fn split(self) -> (Which, When) {
        let when = match (self.at, self.r#in) {
            (Some(at), _) => When::At(at),
            (None, Some(span)) => When::In(span),
            (None, None) => When::Now,
        };
        (self.which, when)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum When {
    Now,
    At(SystemTime),
    In(Duration),
}

/// What to do to jobs, as it was said.
#[derive(Debug, Clone, Copy)]
pub(super) enum Verb {
    Retry,
    Cancel,
    Delete,
    Reschedule(When),
}

impl Verb {
    async fn change(self, pitwheel: &Pitwheel) -> anyhow::Result<Change> {
        Ok(match self {
            Verb::Retry => Change::Retry,
            Verb::Cancel => Change::Cancel,
            Verb::Delete => Change::Delete,
            Verb::Reschedule(When::Now) => Change::Reschedule(None),
            Verb::Reschedule(When::At(at)) => Change::Reschedule(Some(at)),
            Verb::Reschedule(When::In(span)) => {
                Change::Reschedule(Some(database::later(pitwheel, span).await?))
            }
        })
    }

    /// What was done, in a word; the JSON names are a promise.
    fn done(self) -> &'static str {
        match self {
            Verb::Retry => "retried",
            Verb::Cancel => "cancelled",
            Verb::Delete => "deleted",
            Verb::Reschedule(_) => "rescheduled",
        }
    }

    /// The states in which it can be done.
    fn states(self) -> &'static [State] {
        match self {
            Verb::Retry => &[State::Dead, State::Cancelled],
            Verb::Cancel => &[State::Waiting, State::Running],
            Verb::Delete => &[State::Waiting, State::Done, State::Dead, State::Cancelled],
            Verb::Reschedule(_) => &[State::Waiting],
        }
    }
}

/// Ids or a filter, as one must choose.
enum Chosen {
    Ids(Vec<i64>),
    Matching(Filter, State),
}

impl Which {
    fn chosen(self, verb: Verb) -> Result<Chosen, Stop> {
        let states = either(verb.states());
        match (self.ids.is_empty(), self.filter.is_empty(), self.filter.state) {
            (false, true, _) => Ok(Chosen::Ids(self.ids)),
            (false, false, _) => Err(Stop::usage("give ids or a filter, not both")),
            (true, true, _) => Err(Stop::usage(format!(
                "give the ids of jobs, or a filter as `--queue mail --state {}`",
                verb.states().first().map_or("", |state| state.as_str())
            ))),
            (true, false, None) => Err(Stop::usage(format!(
                "a filter must name a state, so that it changes no more than you mean: add `--state` with {states}"
            ))),
            (true, false, Some(state)) if !verb.states().contains(&state) => Err(Stop::usage(format!(
                "a job that is {} cannot be {}: `--state` must be {states}",
                state.as_str(),
                verb.done()
            ))),
            (true, false, Some(state)) => Ok(Chosen::Matching(self.filter.filter(), state)),
        }
    }
}

/// "dead or cancelled": what is left to choose from.
fn either(states: &[State]) -> String {
    let words: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => words.concat(),
    }
}

/// What came of it, job by job.
#[derive(Debug, Default)]
struct Report {
    outcomes: Vec<Value>,
    failed: Option<Code>,
    /// What ended it early.
    fatal: Option<Error>,
}

pub(super) async fn run(verb: Verb, which: Which, settings: &Settings) -> anyhow::Result<()> {
    let chosen = which.chosen(verb)?;
    let pitwheel = database::open(settings).await?;
    let change = verb.change(&pitwheel).await?;
    let report = match chosen {
        Chosen::Ids(ids) => by_id(&pitwheel, verb, change, &ids, settings).await,
        Chosen::Matching(filter, state) => matching(&pitwheel, verb, change, filter, state, settings).await,
    };
    if settings.json() {
        print_json(&report.outcomes)?;
    }
    match report {
        Report { fatal: Some(error), .. } => Err(error.into()),
        Report { failed: Some(code), .. } => Err(Stop::silent(code).into()),
        _ => Ok(()),
    }
}

/// Goes on to the next job when one cannot be had; the first such decides the exit code.
async fn by_id(pitwheel: &Pitwheel, verb: Verb, change: Change, ids: &[i64], settings: &Settings) -> Report {
    let mut report = Report::default();
    for chunk in ids.chunks(CHUNK) {
        let changed = match pitwheel.change(chunk, change).await {
            Ok(changed) => changed,
            Err(error) => {
                report.fatal = Some(error);
                break;
            }
        };
        for (id, changed) in changed {
            report.outcomes.push(json!({ "id": id, "outcome": outcome(verb, changed) }));
            match told(change, id, changed) {
                Ok(words) if !settings.json() => say(&words),
                Ok(_) => {}
                Err(error) => {
                    say_error(&error.to_string());
                    report.failed.get_or_insert(engine_code(&error));
                }
            }
        }
    }
    report
}

fn outcome(verb: Verb, changed: Changed) -> &'static str {
    match changed {
        Changed::Done => verb.done(),
        Changed::Requested => "requested",
        Changed::NotFound => "not_found",
        Changed::KeyTaken => "key_taken",
    }
}

/// What came of it for one job, in words.
fn told(change: Change, id: i64, changed: Changed) -> Result<String, Error> {
    match (changed, change) {
        (Changed::NotFound, _) => Err(Error::NotFound(id, change.missing())),
        (Changed::KeyTaken, _) => Err(Error::KeyTaken(id)),
        (Changed::Requested, _) => Ok(format!("job {id} runs; its handler is asked to stop")),
        (Changed::Done, Change::Retry) => Ok(format!("job {id} waits again, due now")),
        (Changed::Done, Change::Cancel) => Ok(format!("job {id} is cancelled")),
        (Changed::Done, Change::Delete) => Ok(format!("job {id} is deleted")),
        (Changed::Done, Change::Reschedule(at)) => Ok(format!("job {id} is due {}", due(at))),
    }
}

/// One that has passed is now.
fn due(at: Option<SystemTime>) -> String {
    let now = SystemTime::now();
    relative(at.map_or(now, |at| at.max(now)), now)
}

/// Every job that matches, page after page. What one page changed stays so if the next one fails.
async fn matching(
    pitwheel: &Pitwheel,
    verb: Verb,
    change: Change,
    mut filter: Filter,
    state: State,
    settings: &Settings,
) -> Report {
    let mut report = Report::default();
    let mut tally = Tally::default();
    filter.limit = CHUNK;
    // Ends: every page begins below the one before.
    loop {
        let (changed, next) = match pitwheel.change_matching(&filter, change).await {
            Ok(page) => page,
            Err(error) => {
                report.fatal = Some(error);
                break;
            }
        };
        let so_far = tally.done;
        for (id, changed) in changed {
            tally.add(changed);
            if settings.json() {
                report.outcomes.push(json!({ "id": id, "outcome": outcome(verb, changed) }));
            }
        }
        if next.is_none() {
            break;
        }
        if tally.done / SAY_EVERY > so_far / SAY_EVERY {
            say(&format!("{} so far …", jobs(tally.done)));
        }
        filter.before = next;
    }
    if report.fatal.is_none() || tally.done + tally.requested > 0 {
        tally.tell(verb, change, state, settings);
    }
    report.failed = (tally.key_taken > 0).then_some(Code::Failure);
    report
}

/// What came of it for all jobs together.
#[derive(Debug, Default)]
struct Tally {
    done: u64,
    requested: u64,
    not_found: u64,
    key_taken: u64,
}

impl Tally {
    fn add(&mut self, changed: Changed) {
        *match changed {
            Changed::Done => &mut self.done,
            Changed::Requested => &mut self.requested,
            Changed::NotFound => &mut self.not_found,
            Changed::KeyTaken => &mut self.key_taken,
        } += 1;
    }

    /// What was done; and what could not be done, and why.
    fn tell(&self, verb: Verb, change: Change, state: State, settings: &Settings) {
        let Tally { done, requested, not_found, key_taken } = *self;
        if done + requested + not_found + key_taken == 0 {
            say("no job is like that: try the filter with `pitwheel jobs list`");
        }
        if done > 0 && !settings.json() {
            let when = match change {
                Change::Reschedule(at) => format!(", due {}", due(at)),
                _ => String::new(),
            };
            say(&format!("{} {}{when}", jobs(done), verb.done()));
        }
        if requested > 0 && !settings.json() {
            say(&format!("{} asked to stop", jobs(requested)));
        }
        if not_found > 0 {
            say(&format!("{} not {}: no longer {}", jobs(not_found), verb.done(), state.as_str()));
        }
        if key_taken > 0 {
            let why = "a live job has the same kind and key, cancel that one first";
            say_error(&format!("{} not {}: {why}", jobs(key_taken), verb.done()));
        }
    }
}

fn jobs(count: u64) -> String {
    format!("{} {}", HumanCount(count), if count == 1 { "job" } else { "jobs" })
}
