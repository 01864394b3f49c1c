//! `pitwheel kinds`: what workers run, and whose payloads are nobody's business.

use anstyle::AnsiColor;
use clap::Subcommand;
use pitwheel::KindSummary;
use pitwheel_server::views::Kind;
use serde_json::json;

use crate::database;
use crate::output::table::{Column, render};
use crate::output::{print, print_json, say};
use crate::settings::Settings;

#[derive(Debug, Subcommand)]
pub(crate) enum KindsCommand {
    /// List the kinds that living workers run, and those that were redacted or revealed.
    ///
    /// Example:
    ///   pitwheel kinds list
    #[command(verbatim_doc_comment)]
    List,

    /// Keep payloads, metadata and results of a kind from tokens that may not change jobs.
    ///
    /// Through `pitwheel serve` only operators and admins see them then. Workers get what they run, and
    /// whoever can log in to the database sees everything.
    ///
    /// Example:
    ///   pitwheel kinds redact invoice
    #[command(verbatim_doc_comment)]
    Redact {
        /// The kind
        name: String,
    },

    /// Show payloads, metadata and results of a kind to everybody who may see its jobs.
    ///
    /// Example:
    ///   pitwheel kinds reveal invoice
    #[command(verbatim_doc_comment)]
    Reveal {
        /// The kind
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
        say("no living worker runs any kind, and none was redacted: start a worker to see what it runs");
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
    say(&if redacted {
        format!(
            "kind `{name}` is redacted: through `pitwheel serve` only operators and admins see payloads; \
             `pitwheel kinds reveal {name}` ends that"
        )
    } else {
        format!("kind `{name}` is shown: whoever may see its jobs sees their payloads")
    });
    Ok(())
}
