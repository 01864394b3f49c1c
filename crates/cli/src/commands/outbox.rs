//! `pitwheel outbox`: what waits, who sends it, what is parked, and what to do about it.

mod view;

use std::time::SystemTime;

use clap::{Args, Subcommand};
use pitwheel::{Outbox, Replay, Unpark};
use pitwheel_server::outbox_views::{EventLine, OutboxInFull, ParkedLine};
use serde_json::json;

use crate::database;
use crate::exit::{Code, CommandError};
use crate::output::{print, print_json, print_message, visible};
use crate::settings::Settings;
use crate::suggest::quoted;
use crate::time::parse_time;

#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// Show how many events wait and for how long, and the relays.
    ///
    /// Example:
    ///   pitwheel outbox status
    #[command(verbatim_doc_comment)]
    Status,

    /// List the shards, who holds them, and what waits in them.
    ///
    /// Example:
    ///   pitwheel outbox shards
    #[command(verbatim_doc_comment)]
    Shards,

    /// List parked entities: an event of each was refused, and the rest waits behind it.
    ///
    /// Example:
    ///   pitwheel outbox parked
    #[command(verbatim_doc_comment)]
    Parked(ParkedArgs),

    /// Send the events of parked entities again, after the cause was removed.
    ///
    /// Example:
    ///   pitwheel outbox retry order-7
    #[command(verbatim_doc_comment)]
    Retry(RetryArgs),

    /// Delete the refused event of parked entities, and send those behind it.
    ///
    /// Example:
    ///   pitwheel outbox skip order-7
    #[command(verbatim_doc_comment)]
    Skip(EntityArgs),

    /// Delete all events of parked entities.
    ///
    /// Example:
    ///   pitwheel outbox drop order-7
    #[command(verbatim_doc_comment)]
    Drop(EntityArgs),

    /// Send delivered events again, if relays keep them (`pitwheel relay --keep`).
    ///
    /// Example, all of one entity, and all since a time:
    ///   pitwheel outbox replay --entity order-7
    ///   pitwheel outbox replay --since 2030-01-31T08:00:00Z
    #[command(verbatim_doc_comment)]
    Replay(ReplayArgs),

    /// Show where an event is: waiting, parked or sent.
    ///
    /// Example:
    ///   pitwheel outbox trace 4711
    #[command(verbatim_doc_comment)]
    Trace {
        /// The id of the event
        id: i64,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ParkedArgs {
    /// Only entities after this one: use the last one of the previous page
    #[arg(long, value_name = "ENTITY")]
    after: Option<String>,
    /// The number of lines, at most 1000
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// The table of that entity, if it is one of your own
    #[arg(long, value_name = "SCHEMA.TABLE", requires = "after")]
    table: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    entities: EntityArgs,
    /// The table of the entities, if it is one of your own
    #[arg(long, value_name = "SCHEMA.TABLE", default_value = Outbox::TABLE)]
    table: String,
}

#[derive(Debug, Args)]
pub(crate) struct EntityArgs {
    /// The keys of the entities
    #[arg(required = true, value_name = "ENTITY")]
    entities: Vec<String>,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct ReplayArgs {
    /// From this id on
    #[arg(long, value_name = "ID")]
    from_id: Option<i64>,
    /// Delivered at this time or later, as in 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<SystemTime>,
    /// Of this entity only
    #[arg(long)]
    entity: Option<String>,
}

pub(crate) async fn run(command: OutboxCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        OutboxCommand::Status => status(settings).await,
        OutboxCommand::Shards => shards(settings).await,
        OutboxCommand::Parked(args) => parked(args, settings).await,
        OutboxCommand::Retry(args) => unpark(args.entities, &args.table, Unpark::Retry, settings).await,
        OutboxCommand::Skip(args) => unpark(args, Outbox::TABLE, Unpark::Skip, settings).await,
        OutboxCommand::Drop(args) => unpark(args, Outbox::TABLE, Unpark::Drop, settings).await,
        OutboxCommand::Replay(args) => replay(args, settings).await,
        OutboxCommand::Trace { id } => trace(id, settings).await,
    }
}

async fn status(settings: &Settings) -> anyhow::Result<()> {
    let status = database::open(settings).await?.outbox().status().await?;
    if settings.json() {
        return print_json(&OutboxInFull::from(status));
    }
    print(&view::status(&status, SystemTime::now()))?;
    if status.relays.is_empty() {
        print_message("no relay is running: `pitwheel relay --sink …` starts one");
    }
    Ok(())
}

async fn shards(settings: &Settings) -> anyhow::Result<()> {
    let status = database::open(settings).await?.outbox().status().await?;
    if settings.json() {
        return print_json(&OutboxInFull::from(status).shards);
    }
    Ok(print(&view::shards(&status.shards, SystemTime::now()))?)
}

async fn parked(args: ParkedArgs, settings: &Settings) -> anyhow::Result<()> {
    let after = args.after.as_deref().map(|key| (args.table.as_deref().unwrap_or(Outbox::TABLE), key));
    let parked = database::open(settings).await?.outbox().parked(after, args.limit as usize).await?;
    if settings.json() {
        return print_json(&parked.into_iter().map(ParkedLine::from).collect::<Vec<_>>());
    }
    if parked.is_empty() {
        print_message("no entities are parked");
        return Ok(());
    }
    print(&view::parked(&parked, SystemTime::now()))?;
    if let Some(last) = parked.last().filter(|_| parked.len() == args.limit as usize) {
        let word = |text: &str| quoted(&visible(text));
        let table = match &*last.source {
            Outbox::TABLE => String::new(),
            source => format!(" --table {}", word(source)),
        };
        print_message(&format!(
            "there may be more: add `--after {}{table}` for the next page",
            word(&last.entity_key)
        ));
    }
    Ok(())
}

async fn unpark(args: EntityArgs, table: &str, how: Unpark, settings: &Settings) -> anyhow::Result<()> {
    let outbox = database::open(settings).await?.outbox();
    let keys: Vec<&str> = args.entities.iter().map(String::as_str).collect();
    let changed = outbox.unpark_in(table, &keys, how).await?;
    if settings.json() {
        let changed = changed.iter().map(|(key, events)| json!({ "entity_key": key, "events": events }));
        print_json(&changed.collect::<Vec<_>>())?;
    } else {
        for (entity, events) in &changed {
            let what = match how {
                Unpark::Drop => "its events are deleted".to_owned(),
                _ if table != Outbox::TABLE => "its events are sent again".to_owned(),
                _ => format!("{events} events are sent again"),
            };
            print(&format!("{entity}: {what}\n"))?;
        }
    }
    let missing = keys.iter().filter(|key| !changed.iter().any(|(entity, _)| entity == *key));
    let missing: Vec<&str> = missing.copied().collect();
    if missing.is_empty() {
        return Ok(());
    }
    print_message(&format!("not parked: {}", missing.join(", ")));
    Err(CommandError::silent(Code::NotFound).into())
}

async fn replay(args: ReplayArgs, settings: &Settings) -> anyhow::Result<()> {
    let which = Replay { first_id: args.from_id, since: args.since, entity_key: args.entity };
    let events = database::open(settings).await?.outbox().replay(&which).await?;
    if settings.json() {
        return print_json(&json!({ "events": events }));
    }
    Ok(print(&format!("{events} events are sent again\n"))?)
}

async fn trace(id: i64, settings: &Settings) -> anyhow::Result<()> {
    let found = database::open(settings).await?.outbox().trace(id).await?;
    if found.is_empty() {
        return Err(CommandError::not_found(format!(
            "event {id} was not found: it was delivered and not kept, dropped, or never committed"
        ))
        .into());
    }
    if settings.json() {
        return print_json(&found.into_iter().map(EventLine::from).collect::<Vec<_>>());
    }
    Ok(print(&view::trace(&found, SystemTime::now()))?)
}
