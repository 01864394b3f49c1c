//! `pitwheel jobs enqueue`.

use std::io::Read;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Args;
use pitwheel::NewJob;
use serde_json::json;
use serde_json::value::RawValue;

use crate::database;
use crate::exit::Stop;
use crate::output::{print, print_json, say};
use crate::settings::Settings;
use crate::time::{parse_moment, parse_span};

/// More on standard input is not read: a payload is at most a quarter of this.
const STDIN_MAX: u64 = 1024 * 1024;

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

pub(crate) async fn run(args: EnqueueArgs, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::open(settings).await?;
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
