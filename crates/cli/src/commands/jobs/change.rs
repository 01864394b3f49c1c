//! `pitwheel jobs retry`, `cancel`, `delete` and `reschedule`: jobs by their ids, or all that match a filter.

use std::time::{Duration, SystemTime};

use clap::Args;
use indicatif::HumanCount;
use pitwheel::{Change, Changed, Error, Filter, Pitwheel, State};
use serde_json::{Value, json};

use super::filter::FilterArgs;
use crate::database;
use crate::exit::{Code, CommandError, engine_code};
use crate::output::{print_error, print_json, print_message};
use crate::settings::Settings;
use crate::time::{parse_span, parse_time, relative};

/// Jobs per statement, the most that the engine accepts.
const CHUNK: usize = 1000;
/// Jobs between two messages about the progress of a long change. That takes a few seconds.
const PROGRESS_EVERY: u64 = 100_000;

/// The jobs to change: ids or a filter.
#[derive(Debug, Args)]
pub(crate) struct JobSelectionArgs {
    /// The ids of the jobs
    #[arg(value_name = "ID", value_parser = clap::value_parser!(i64).range(1..))]
    ids: Vec<i64>,
    #[command(flatten, next_help_heading = "Filter, instead of ids; it must name a state")]
    filter: FilterArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RescheduleArgs {
    /// Due at this time, as in 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "in")]
    at: Option<SystemTime>,
    /// Due after this time from now, as in 30s, 10m, 2h or 1d
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    r#in: Option<Duration>,
    #[command(flatten)]
    jobs: JobSelectionArgs,
}

impl RescheduleArgs {
    pub(super) fn split(self) -> (JobSelectionArgs, DueTime) {
        let when = match (self.at, self.r#in) {
            (Some(at), _) => DueTime::At(at),
            (None, Some(span)) => DueTime::In(span),
            (None, None) => DueTime::Now,
        };
        (self.jobs, when)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum DueTime {
    Now,
    At(SystemTime),
    In(Duration),
}

/// What to do with jobs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Action {
    Retry,
    Cancel,
    Delete,
    Reschedule(DueTime),
}

impl Action {
    async fn change(self, pitwheel: &Pitwheel) -> anyhow::Result<Change> {
        Ok(match self {
            Action::Retry => Change::Retry,
            Action::Cancel => Change::Cancel,
            Action::Delete => Change::Delete,
            Action::Reschedule(DueTime::Now) => Change::Reschedule(None),
            Action::Reschedule(DueTime::At(at)) => Change::Reschedule(Some(at)),
            Action::Reschedule(DueTime::In(span)) => {
                Change::Reschedule(Some(database::later(pitwheel, span).await?))
            }
        })
    }

    /// The past participle, in messages and as the outcome in JSON output.
    fn past(self) -> &'static str {
        match self {
            Action::Retry => "retried",
            Action::Cancel => "cancelled",
            Action::Delete => "deleted",
            Action::Reschedule(_) => "rescheduled",
        }
    }

    /// The states of jobs that it applies to.
    fn states(self) -> &'static [State] {
        match self {
            Action::Retry => &[State::Dead, State::Cancelled],
            Action::Cancel => &[State::Waiting, State::Blocked, State::Running],
            Action::Delete => &[State::Waiting, State::Blocked, State::Done, State::Dead, State::Cancelled],
            Action::Reschedule(_) => &[State::Waiting, State::Blocked],
        }
    }
}

/// Ids or a filter with a state.
enum Selection {
    Ids(Vec<i64>),
    Matching(Filter, State),
}

impl JobSelectionArgs {
    fn selection(self, action: Action) -> Result<Selection, CommandError> {
        let states = either(action.states());
        match (self.ids.is_empty(), self.filter.is_empty(), self.filter.state) {
            (false, true, _) => Ok(Selection::Ids(self.ids)),
            (false, false, _) => Err(CommandError::usage("give ids or a filter, not both")),
            (true, true, _) => Err(CommandError::usage(format!(
                "give the ids of jobs, or a filter, as in `--queue mail --state {}`",
                action.states().first().map_or("", |state| state.as_str())
            ))),
            (true, false, None) => Err(CommandError::usage(format!(
                "a filter must name a state, so that it changes only the jobs you mean: add `--state` with {states}"
            ))),
            (true, false, Some(state)) if !action.states().contains(&state) => {
                Err(CommandError::usage(format!(
                    "a job that is {} cannot be {}: `--state` must be {states}",
                    state.as_str(),
                    action.past()
                )))
            }
            (true, false, Some(state)) => Ok(Selection::Matching(self.filter.filter(), state)),
        }
    }
}

/// The states as text: "dead or cancelled".
fn either(states: &[State]) -> String {
    let words: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
    match words.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => words.concat(),
    }
}

/// The outcome of each job.
#[derive(Debug, Default)]
struct Report {
    outcomes: Vec<Value>,
    /// The exit code, if some jobs could not be changed.
    failed: Option<Code>,
    /// The error that ended it early.
    fatal: Option<Error>,
}

pub(super) async fn run(action: Action, jobs: JobSelectionArgs, settings: &Settings) -> anyhow::Result<()> {
    let selection = jobs.selection(action)?;
    let pitwheel = database::open(settings).await?;
    let change = action.change(&pitwheel).await?;
    let report = match selection {
        Selection::Ids(ids) => by_id(&pitwheel, action, change, &ids, settings).await,
        Selection::Matching(filter, state) => {
            matching(&pitwheel, action, change, filter, state, settings).await
        }
    };
    if settings.json() {
        print_json(&report.outcomes)?;
    }
    match report {
        Report { fatal: Some(error), .. } => Err(error.into()),
        Report { failed: Some(code), .. } => Err(CommandError::silent(code).into()),
        _ => Ok(()),
    }
}

/// Continues with the next job when one cannot be changed. The first failure decides the exit code.
async fn by_id(
    pitwheel: &Pitwheel,
    action: Action,
    change: Change,
    ids: &[i64],
    settings: &Settings,
) -> Report {
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
            report.outcomes.push(json!({ "id": id, "outcome": outcome(action, changed) }));
            match describe(change, id, changed) {
                Ok(words) if !settings.json() => print_message(&words),
                Ok(_) => {}
                Err(error) => {
                    print_error(&error.to_string());
                    report.failed.get_or_insert(engine_code(&error));
                }
            }
        }
    }
    report
}

fn outcome(action: Action, changed: Changed) -> &'static str {
    match changed {
        Changed::Done => action.past(),
        Changed::Requested => "requested",
        Changed::NotFound => "not_found",
        Changed::KeyTaken => "key_taken",
    }
}

/// The outcome for one job, as a message or an error.
fn describe(change: Change, id: i64, changed: Changed) -> Result<String, Error> {
    match (changed, change) {
        (Changed::NotFound, _) => Err(Error::NotFound(id, change.missing())),
        (Changed::KeyTaken, _) => Err(Error::KeyTaken(id)),
        (Changed::Requested, _) => Ok(format!("job {id} is running; its handler is asked to stop")),
        (Changed::Done, Change::Retry) => Ok(format!("job {id} is waiting again, due now")),
        (Changed::Done, Change::Cancel) => Ok(format!("job {id} is cancelled")),
        (Changed::Done, Change::Delete) => Ok(format!("job {id} is deleted")),
        (Changed::Done, Change::Reschedule(at)) => Ok(format!("job {id} is due {}", due(at))),
    }
}

/// When a job is due, relative to now. A time in the past counts as now.
fn due(at: Option<SystemTime>) -> String {
    let now = SystemTime::now();
    relative(at.map_or(now, |at| at.max(now)), now)
}

/// Changes all jobs that match, page by page. If a page fails, the changes of earlier pages stay.
async fn matching(
    pitwheel: &Pitwheel,
    action: Action,
    change: Change,
    mut filter: Filter,
    state: State,
    settings: &Settings,
) -> Report {
    let mut report = Report::default();
    let mut tally = Tally::default();
    filter.limit = CHUNK;
    // Terminates: every page starts below the previous one.
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
                report.outcomes.push(json!({ "id": id, "outcome": outcome(action, changed) }));
            }
        }
        if next.is_none() {
            break;
        }
        if tally.done / PROGRESS_EVERY > so_far / PROGRESS_EVERY {
            print_message(&format!("{} so far …", jobs(tally.done)));
        }
        filter.before = next;
    }
    if report.fatal.is_none() || tally.done + tally.requested > 0 {
        tally.print(action, change, state, settings);
    }
    report.failed = (tally.key_taken > 0).then_some(Code::Failure);
    report
}

/// Number of jobs by outcome.
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

    /// Prints how many jobs were changed, and how many were not and why.
    fn print(&self, action: Action, change: Change, state: State, settings: &Settings) {
        let Tally { done, requested, not_found, key_taken } = *self;
        if done + requested + not_found + key_taken == 0 {
            print_message("no jobs match: try the filter with `pitwheel jobs list`");
        }
        if done > 0 && !settings.json() {
            let when = match change {
                Change::Reschedule(at) => format!(", due {}", due(at)),
                _ => String::new(),
            };
            print_message(&format!("{} {}{when}", jobs(done), action.past()));
        }
        if requested > 0 && !settings.json() {
            print_message(&format!("{} asked to stop", jobs(requested)));
        }
        if not_found > 0 {
            print_message(&format!(
                "{} not {}: no longer {}",
                jobs(not_found),
                action.past(),
                state.as_str()
            ));
        }
        if key_taken > 0 {
            let why = "a live job has the same kind and key, cancel that one first";
            print_error(&format!("{} not {}: {why}", jobs(key_taken), action.past()));
        }
    }
}

fn jobs(count: u64) -> String {
    format!("{} {}", HumanCount(count), if count == 1 { "job" } else { "jobs" })
}
