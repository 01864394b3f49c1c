//! `pitwheel migrate`: the schema.

use clap::Subcommand;
use pitwheel::{MigrationStatus, Pitwheel};
use serde_json::json;

use crate::database;
use crate::exit::{Code, Stop};
use crate::output::{print, print_json, say};
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Bring the schema up to this version. Safe to repeat, and from many nodes at once.
    ///
    /// Example:
    ///   pitwheel migrate up
    #[command(verbatim_doc_comment)]
    Up,

    /// Say where the schema stands; exit code 5 when `migrate up` has something to do.
    ///
    /// Example, to wait until somebody else has migrated:
    ///   until pitwheel migrate status; do sleep 1; done
    #[command(verbatim_doc_comment)]
    Status,
}

pub(crate) async fn run(command: &MigrateCommand, settings: &Settings) -> anyhow::Result<()> {
    let pitwheel = database::connect(&database::find(settings)?).await?;
    match command {
        MigrateCommand::Up => up(&pitwheel, settings).await,
        MigrateCommand::Status => status(&pitwheel, settings).await,
    }
}

async fn up(pitwheel: &Pitwheel, settings: &Settings) -> anyhow::Result<()> {
    let applied = pitwheel.migrate().await?;
    let version = pitwheel.migration_status().await?.found;
    if settings.json() {
        return print_json(&json!({ "version": version, "applied": applied }));
    }
    say(&told(&applied, version));
    Ok(())
}

/// What a migration did, in words.
pub(crate) fn told(applied: &[&str], version: i32) -> String {
    match applied {
        [] => format!("the schema is at version {version} already, nothing to do"),
        names => format!("the schema is at version {version} now; applied: {}", names.join(", ")),
    }
}

async fn status(pitwheel: &Pitwheel, settings: &Settings) -> anyhow::Result<()> {
    let status = pitwheel.migration_status().await?;
    let state = match &status {
        MigrationStatus { pending, .. } if !pending.is_empty() => "behind",
        status if status.found > status.known => "ahead",
        _ => "current",
    };
    if settings.json() {
        print_json(&json!({
            "state": state, "version": status.found, "known": status.known, "pending": status.pending
        }))?;
    } else {
        print(&page(state, &status))?;
    }
    match state {
        "behind" => Err(Stop::silent(Code::SchemaBehind).into()),
        // Only a change that breaks this version is refused.
        _ => Ok(pitwheel.check_schema().await?),
    }
}

fn page(state: &str, status: &MigrationStatus) -> String {
    let MigrationStatus { found, known, pending } = status;
    match state {
        "behind" => format!(
            "behind: the schema is at version {found} of {known}, still to come: {}; run `pitwheel migrate up`",
            pending.join(", ")
        ),
        "ahead" => {
            format!("ahead: the schema is at version {found}, this version of Pitwheel knows up to {known}")
        }
        _ => format!("current: the schema is at version {found}"),
    }
}
