//! `pitwheel migrate`: migrates the schema, or shows its version.

use clap::Subcommand;
use pitwheel::{MigrationStatus, Pitwheel};
use serde_json::json;

use crate::database;
use crate::exit::{Code, CommandError};
use crate::output::{print, print_json, print_message};
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
pub(crate) enum MigrateCommand {
    /// Migrate the schema to this version. Safe to repeat, and to run on many nodes at once.
    ///
    /// Example:
    ///   pitwheel migrate up
    #[command(verbatim_doc_comment)]
    Up,

    /// Show the version of the schema. The exit code is 5 when `migrate up` is needed.
    ///
    /// Example, to wait until another process has migrated:
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
    print_message(&describe(&applied, version));
    Ok(())
}

/// The result of a migration as a message.
pub(crate) fn describe(applied: &[&str], version: i32) -> String {
    match applied {
        [] => format!("the schema is already at version {version}, nothing to do"),
        names => format!("the schema is now at version {version}; applied: {}", names.join(", ")),
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
        "behind" => Err(CommandError::silent(Code::SchemaBehind).into()),
        // A newer schema is an error only if this version cannot work with it.
        _ => Ok(pitwheel.check_schema().await?),
    }
}

fn page(state: &str, status: &MigrationStatus) -> String {
    let MigrationStatus { found, known, pending } = status;
    match state {
        "behind" => format!(
            "behind: the schema is at version {found} of {known}, missing: {}; run `pitwheel migrate up`",
            pending.join(", ")
        ),
        "ahead" => {
            format!("ahead: the schema is at version {found}, this Pitwheel knows versions up to {known}")
        }
        _ => format!("current: the schema is at version {found}"),
    }
}
