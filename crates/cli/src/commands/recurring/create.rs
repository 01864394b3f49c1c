//! `pitwheel recurring create`.

use std::time::{Duration, SystemTime};

use clap::Args;
use pitwheel::{Cadence, Misfire, NewRecurring};
use serde_json::json;

use crate::commands::jobs::enqueue::{checked_json, stdin};
use crate::database;
use crate::output::{print, print_json, print_message};
use crate::settings::Settings;
use crate::time::{parse_span, parse_time, relative};

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The kind of its runs, which selects their handler
    kind: String,
    /// The key: a kind has one recurring job with it
    key: String,
    /// The cadence, in quotes, as in 'every 15m'
    cadence: Cadence,
    /// JSON for its runs, or - to read it from standard input
    #[arg(default_value = "{}", allow_negative_numbers = true)]
    payload: String,
    /// What becomes of planned times at which it could not run: skip, one or all
    #[arg(long, value_name = "POLICY", default_value = "one")]
    misfire: Misfire,
    /// The queue of its runs
    #[arg(long, default_value = "default")]
    queue: String,
    /// The priority of its runs, -9 to 9; higher runs first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i16,
    /// The number of attempts of one run before it is dead and the next run follows [default: no limit]
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// How long one attempt may take
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    timeout: Option<Duration>,
    /// JSON about its runs, beside the payload
    #[arg(long, value_name = "JSON")]
    metadata: Option<String>,
    /// The time of the first run, as in 2030-01-31T08:00:00Z [default: now, for cron its next time]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    first_at: Option<SystemTime>,
}

pub(crate) async fn run(args: CreateArgs, settings: &Settings) -> anyhow::Result<()> {
    let recurring = database::open(settings).await?.recurring();
    let created = recurring.create(new(args)?).await?;
    if settings.json() {
        return print_json(&json!({ "id": created.id, "is_new": created.is_new }));
    }
    print(&created.id.to_string())?;
    let what = if created.is_new { "created" } else { "it existed: it is enabled and has this definition" };
    let when = created.next_run.map_or_else(String::new, |next| {
        format!(", its next run is due {}", relative(next.at, SystemTime::now()))
    });
    print_message(&format!("{what}{when}; `pitwheel recurring show {}` shows it", created.id));
    Ok(())
}

fn new(args: CreateArgs) -> anyhow::Result<NewRecurring> {
    let payload = if args.payload == "-" { stdin()? } else { args.payload };
    let payload = checked_json("payload", &payload)?;
    let mut new = NewRecurring::raw(args.kind, payload.get(), args.key, args.cadence)
        .misfire(args.misfire)
        .queue(args.queue)
        .priority(args.priority);
    if let Some(max) = args.max_attempts {
        new = new.max_attempts(max);
    }
    if let Some(timeout) = args.timeout {
        new = new.timeout(timeout);
    }
    if let Some(metadata) = args.metadata {
        new = new.metadata(&checked_json("metadata", &metadata)?);
    }
    if let Some(at) = args.first_at {
        new = new.first_at(at);
    }
    Ok(new)
}
