//! `pitwheel jobs enqueue`.

use std::io::Read;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Args;
use pitwheel::{Lane, NewJob};
use serde_json::json;
use serde_json::value::RawValue;

use crate::database;
use crate::exit::CommandError;
use crate::output::{print, print_json, print_message};
use crate::settings::Settings;
use crate::time::{parse_span, parse_time};

/// The most that is read from standard input. A payload may have a quarter of it.
const STDIN_MAX: u64 = 1024 * 1024;

#[derive(Debug, Args)]
pub(crate) struct EnqueueArgs {
    /// The kind, which selects the handler
    kind: String,
    /// JSON, or - to read it from standard input
    #[arg(default_value = "{}", allow_negative_numbers = true)]
    payload: String,
    /// The queue
    #[arg(long, default_value = "default")]
    queue: String,
    /// The priority, -9 to 9; higher runs first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i16,
    /// The key: if a live job of this kind has it, no job is enqueued and the id of that job is printed
    #[arg(long)]
    key: Option<String>,
    /// Due after this time from now, as in 30s, 10m, 2h or 1d
    #[arg(long, value_name = "SPAN", value_parser = parse_span, conflicts_with = "run_at")]
    delay: Option<Duration>,
    /// Due at this time, as in 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    run_at: Option<SystemTime>,
    /// The number of attempts before the job is dead
    #[arg(long, value_name = "N", default_value_t = 20)]
    max_attempts: u32,
    /// How long one attempt may take
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    timeout: Option<Duration>,
    /// The lane: a name, or a JSON array as in '["tenant",7,null]'; jobs of one lane run one at a time, in order
    #[arg(long)]
    lane: Option<String>,
    /// Let others of the lane run while the job waits for its time, as after a failure
    #[arg(long, requires = "lane")]
    lane_pass: bool,
    /// JSON about the job, beside the payload
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
}

pub(crate) async fn run(args: EnqueueArgs, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
    let enqueued = pitwheel.enqueue(new_job(args)?).await?;
    if settings.json() {
        return print_json(&json!({ "id": enqueued.id, "is_new": enqueued.is_new }));
    }
    print(&enqueued.id.to_string())?;
    if enqueued.is_new {
        print_message(&format!("enqueued; `pitwheel jobs show {}` shows its state", enqueued.id));
    } else {
        print_message("a live job of this kind already has this key: this is its id, nothing was enqueued");
    }
    Ok(())
}

fn new_job(args: EnqueueArgs) -> anyhow::Result<NewJob> {
    let payload = if args.payload == "-" { stdin()? } else { args.payload };
    let payload = checked_json("payload", &payload)?;
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
        job = job.metadata(&checked_json("metadata", &metadata)?);
    }
    if let Some(lane) = args.lane {
        job = job.lane(lane_of(&lane)?).lane_pass(args.lane_pass);
    }
    Ok(job)
}

/// The lane that the command line names: a JSON array, or else its text as it is.
pub(crate) fn lane_of(text: &str) -> anyhow::Result<Lane> {
    Ok(if text.starts_with('[') { Lane::from_json(text)? } else { text.into() })
}

/// Checks JSON from the command line, and keeps it byte for byte. The engine checks it too, but only here can the error mention
/// the quotes of the shell.
pub(crate) fn checked_json(what: &str, text: &str) -> Result<Box<RawValue>, CommandError> {
    RawValue::from_string(text.trim().to_owned()).map_err(|error| {
        CommandError::usage(format!(
            "{what} is not JSON: {error}; give it in single quotes, as in '{{\"name\":\"Ada\"}}'"
        ))
    })
}

pub(crate) fn stdin() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().take(STDIN_MAX + 1).read_to_end(&mut bytes).context("cannot read standard input")?;
    if bytes.len() as u64 > STDIN_MAX {
        return Err(CommandError::usage(format!(
            "payload has more than {STDIN_MAX} bytes: store it elsewhere and enqueue a reference"
        ))
        .into());
    }
    let text = String::from_utf8(bytes);
    Ok(text.map_err(|_| CommandError::usage("payload on standard input is not UTF-8"))?)
}
