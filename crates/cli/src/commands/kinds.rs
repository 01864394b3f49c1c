//! `pitwheel kinds`: lists kinds, and redacts or reveals them.

use anstyle::AnsiColor;
use clap::Subcommand;
use pitwheel::KindSummary;
use pitwheel_server::views::Kind;
use serde_json::json;

use crate::database;
use crate::output::table::{Column, render};
use crate::output::{print, print_json, print_message};
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
pub(crate) enum KindsCommand {
    /// List the kinds that running workers handle, and those that were redacted or revealed.
    ///
    /// Example:
    ///   pitwheel kinds list
    #[command(verbatim_doc_comment)]
    List,

    /// Hide keys, lanes, notes, payloads, metadata, results and error messages of a kind.
    ///
    /// `pitwheel serve` then shows them to operators and admins only. Workers still get the jobs
    /// that they run, and everyone who can log in to the database can read everything.
    ///
    /// Example:
    ///   pitwheel kinds redact invoice
    #[command(verbatim_doc_comment)]
    Redact {
        /// The name of the kind
        name: String,
    },

    /// Show what was hidden of a kind to everyone who may see its jobs.
    ///
    /// Example:
    ///   pitwheel kinds reveal invoice
    #[command(verbatim_doc_comment)]
    Reveal {
        /// The name of the kind
        name: String,
    },
}

pub(crate) async fn run(command: KindsCommand, settings: &Settings) -> anyhow::Result<()> {
    match command {
        KindsCommand::List => list(settings).await,
        KindsCommand::Redact { name } => redact(&name, true, settings).await,
        KindsCommand::Reveal { name } => redact(&name, false, settings).await,
    }
}

async fn list(settings: &Settings) -> anyhow::Result<()> {
    let kinds = database::open(settings).await?.kinds().await?;
    if kinds.is_empty() {
        print_message("no worker is running and no kind was redacted: start a worker to see its kinds");
    }
    if settings.json() {
        return print_json(&kinds.into_iter().map(Kind::from).collect::<Vec<_>>());
    }
    if kinds.is_empty() {
        return Ok(());
    }
    Ok(print(&table(&kinds))?)
}

fn table(kinds: &[KindSummary]) -> String {
    let redacted = |kind: &KindSummary| if kind.redacted { "redacted" } else { "shown" };
    let columns = vec![
        Column::new("KIND", kinds, |kind| kind.name.clone()).cut(),
        Column::new("WORKERS", kinds, |kind| kind.workers.to_string()).numeric(),
        Column::new("PAYLOADS", kinds, |kind| redacted(kind).to_owned())
            .coloured(|word| (word == "redacted").then_some(AnsiColor::Yellow)),
    ];
    render(columns)
}

async fn redact(name: &str, redacted: bool, settings: &Settings) -> anyhow::Result<()> {
    database::open(settings).await?.redact(name, redacted).await?;
    if settings.json() {
        return print_json(&json!({ "name": name, "redacted": redacted }));
    }
    print_message(&if redacted {
        format!(
            "kind `{name}` is redacted: `pitwheel serve` shows its keys, lanes, notes, payloads, metadata, results and \
             error messages to operators and admins only; `pitwheel kinds reveal {name}` shows them again"
        )
    } else {
        format!("kind `{name}` is revealed: everyone who may see its jobs can see all of them")
    });
    Ok(())
}
