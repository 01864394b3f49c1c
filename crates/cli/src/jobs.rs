//! `pitwheel jobs`: list, show, enqueue, retry, cancel.

use std::io::Read;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use pitwheel::{Cancelled, Filter, JobPage, NewJob, Pitwheel, State};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::database;
use crate::exit::{Code, Stop, engine_code};
use crate::job_view;
use crate::output::{print, print_json, say};
use crate::settings::Settings;
use crate::time::{parse_moment, parse_span};

/// More on standard input is not read: a payload is at most a quarter of this.
const STDIN_MAX: u64 = 1024 * 1024;

#[derive(Debug, Subcommand)]
pub(crate) enum JobsCommand {
    /// List jobs, live and finished, newest first.
    ///
    /// Example, the dead jobs of a queue, and the page after job 4711:
    ///   pitwheel jobs list --queue mail --state dead
    ///   pitwheel jobs list --queue mail --state dead --before 4711
    #[command(verbatim_doc_comment)]
    List(ListArgs),

    /// Show all about one job: state, attempts, payload.
    ///
    /// Example, for people and for programs:
    ///   pitwheel jobs show 42
    ///   pitwheel jobs show 42 -o json | jq .payload
    #[command(verbatim_doc_comment)]
    Show {
        /// The job
        #[arg(value_parser = clap::value_parser!(i64).range(1..))]
        id: i64,
    },

    /// Enqueue a job and print its id.
    ///
    /// Example, now, later, and with a payload from a file:
    ///   pitwheel jobs enqueue greet '{"name":"Ada"}'
    ///   pitwheel jobs enqueue invoice '{"number":7}' --key invoice-7 --delay 10m
    ///   pitwheel jobs enqueue import - < rows.json
    #[command(verbatim_doc_comment)]
    Enqueue(EnqueueArgs),

    /// Let dead or cancelled jobs live again, due now, with all their attempts before them.
    ///
    /// Example:
    ///   pitwheel jobs retry 42 43
    #[command(verbatim_doc_comment)]
    Retry(Ids),

    /// Cancel jobs: at once when they wait, by asking their handler when they run.
    ///
    /// Example:
    ///   pitwheel jobs cancel 42
    #[command(verbatim_doc_comment)]
    Cancel(Ids),
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only this queue
    #[arg(long)]
    queue: Option<String>,
    /// Only this kind
    #[arg(long)]
    kind: Option<String>,
    /// Only this state
    #[arg(long, value_parser = PossibleValuesParser::new(State::ALL.map(State::as_str)).try_map(|word| word.parse::<State>()))]
    state: Option<State>,
    /// Only ids below this one: the last id of the page before
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    /// How many, at most 1000
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct EnqueueArgs {
    /// The name that picks the handler
    kind: String,
    /// JSON, or - to read it from standard input
    #[arg(default_value = "{}", allow_negative_numbers = true)]
    payload: String,
    /// The queue it waits in
    #[arg(long, default_value = "default")]
    queue: String,
    /// -9 to 9, higher first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i16,
    /// Its identity: while a job of this kind with this key is live, that one is given back
    #[arg(long)]
    key: Option<String>,
    /// Not before this much later, as 30s, 10m, 2h or 1d
    #[arg(long, value_name = "SPAN", value_parser = parse_span, conflicts_with = "run_at")]
    delay: Option<Duration>,
    /// Not before this time, as 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    run_at: Option<SystemTime>,
    /// How often it may be attempted before it is buried
    #[arg(long, value_name = "N", default_value_t = 20)]
    max_attempts: u32,
    /// How long one attempt may take
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    timeout: Option<Duration>,
    /// JSON about the job that is not its payload
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Ids {
    /// The jobs
    #[arg(value_name = "ID", required = true, value_parser = clap::value_parser!(i64).range(1..))]
    ids: Vec<i64>,
}

pub(crate) async fn run(command: JobsCommand, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
    match command {
        JobsCommand::List(args) => list(&pitwheel, args, settings).await,
        JobsCommand::Show { id } => show(&pitwheel, id, settings).await,
        JobsCommand::Enqueue(args) => enqueue(&pitwheel, args, settings).await,
        JobsCommand::Retry(jobs) => {
            each(&jobs.ids, settings, async |id| {
                pitwheel.retry(id).await?;
                Ok(("retried", format!("job {id} waits again, due now")))
            })
            .await
        }
        JobsCommand::Cancel(jobs) => {
            each(&jobs.ids, settings, async |id| {
                Ok(match pitwheel.cancel(id).await? {
                    Cancelled::AtOnce => ("cancelled", format!("job {id} is cancelled")),
                    Cancelled::Requested => {
                        ("requested", format!("job {id} runs; its handler is asked to stop"))
                    }
                })
            })
            .await
        }
    }
}

async fn list(pitwheel: &Pitwheel, args: ListArgs, settings: &Settings) -> anyhow::Result<()> {
    let limit = args.limit as usize;
    let filtered =
        args.queue.is_some() || args.kind.is_some() || args.state.is_some() || args.before.is_some();
    let filter = Filter {
        queue: args.queue,
        kind: args.kind,
        state: args.state,
        before: args.before,
        limit,
        ..Filter::default()
    };
    let JobPage { jobs, next } = pitwheel.jobs(&filter).await?;
    if jobs.is_empty() && next.is_none() {
        say(if filtered {
            "no job is like that: leave out a filter, or look at `pitwheel queues list`"
        } else {
            "no jobs yet: enqueue one with `pitwheel jobs enqueue greet '{\"name\":\"Ada\"}'`"
        });
    }
    if settings.json() {
        return print_json(&jobs.iter().map(job_view::in_list).collect::<Vec<_>>());
    }
    if !jobs.is_empty() {
        print(&job_view::table(&jobs, SystemTime::now()))?;
    }
    if let Some(next) = next {
        say(&format!("there may be more: add `--before {next}` for the next page"));
    }
    Ok(())
}

async fn show(pitwheel: &Pitwheel, id: i64, settings: &Settings) -> anyhow::Result<()> {
    let job = pitwheel.job(id).await?;
    if settings.json() {
        return print_json(&job_view::in_full(&job)?);
    }
    print(&job_view::page(&job, SystemTime::now()))?;
    if let Some(hint) = job_view::hint(&job.summary) {
        say(&format!("\n{hint}"));
    }
    Ok(())
}

async fn enqueue(pitwheel: &Pitwheel, args: EnqueueArgs, settings: &Settings) -> anyhow::Result<()> {
    let enqueued = pitwheel.enqueue(new_job(args)?).await?;
    if settings.json() {
        return print_json(&json!({ "id": enqueued.id, "is_new": enqueued.is_new }));
    }
    print(&enqueued.id.to_string())?;
    if enqueued.is_new {
        say(&format!("enqueued; `pitwheel jobs show {}` tells how it fares", enqueued.id));
    } else {
        say("a live job of this kind has the key already: this is that one, nothing was enqueued");
    }
    Ok(())
}

fn new_job(args: EnqueueArgs) -> anyhow::Result<NewJob> {
    let payload = if args.payload == "-" { stdin()? } else { args.payload };
    let payload = given_json("payload", &payload)?;
    let mut job = NewJob::raw(args.kind, payload.get())
        .queue(args.queue)
        .priority(args.priority)
        .max_attempts(args.max_attempts);
    if let Some(key) = args.key {
        job = job.key(key);
    }
    if let Some(delay) = args.delay {
        job = job.delay(delay);
    }
    if let Some(run_at) = args.run_at {
        job = job.run_at(run_at);
    }
    if let Some(timeout) = args.timeout {
        job = job.timeout(timeout);
    }
    if let Some(metadata) = args.metadata {
        job = job.metadata(&given_json("metadata", &metadata)?);
    }
    Ok(job)
}

/// JSON that somebody typed, byte for byte. The engine would refuse what is not; a shell's quotes are our matter.
fn given_json(what: &str, text: &str) -> Result<Box<RawValue>, Stop> {
    RawValue::from_string(text.trim().to_owned()).map_err(|error| {
        Stop::usage(format!(
            "{what} is not JSON: {error}; give it in single quotes, as '{{\"name\":\"Ada\"}}'"
        ))
    })
}

fn stdin() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().take(STDIN_MAX + 1).read_to_end(&mut bytes).context("standard input cannot be read")?;
    if bytes.len() as u64 > STDIN_MAX {
        return Err(Stop::usage(format!(
            "payload has more than {STDIN_MAX} bytes: store it elsewhere and enqueue a reference"
        ))
        .into());
    }
    let text = String::from_utf8(bytes);
    Ok(text.map_err(|_| Stop::usage("payload on standard input is not UTF-8"))?)
}

/// Does something to each job and goes on to the next when one cannot be had; the first such decides the exit code.
async fn each(
    ids: &[i64],
    settings: &Settings,
    act: impl AsyncFn(i64) -> Result<(&'static str, String), pitwheel::Error>,
) -> anyhow::Result<()> {
    let mut outcomes: Vec<Value> = Vec::new();
    let mut failed: Option<Code> = None;
    let mut fatal = None;
    for &id in ids {
        match act(id).await {
            Ok((outcome, words)) => {
                outcomes.push(json!({ "id": id, "outcome": outcome }));
                if !settings.json() {
                    say(&words);
                }
            }
            Err(error @ (pitwheel::Error::NotFound(..) | pitwheel::Error::KeyTaken(_))) => {
                outcomes.push(json!({ "id": id, "outcome": error.code() }));
                say(&format!("error: {error}"));
                failed.get_or_insert(engine_code(&error));
            }
            Err(error) => {
                fatal = Some(error);
                break;
            }
        }
    }
    if settings.json() {
        print_json(&outcomes)?;
    }
    match (fatal, failed) {
        (Some(error), _) => Err(error.into()),
        (None, Some(code)) => Err(Stop::silent(code).into()),
        (None, None) => Ok(()),
    }
}
