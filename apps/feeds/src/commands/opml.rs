//! `pitwheel-feeds opml`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Subcommand;
use pitwheel_feeds::Feeds;
use serde_json::json;

use pitwheel_app::Progress;
use pitwheel_app::output::{OutputFormat, print, print_json, print_message, visible};

#[derive(Debug, Subcommand)]
pub(crate) enum OpmlCommand {
    /// Add the feeds of an OPML file that are not there yet.
    Import {
        /// The file
        file: PathBuf,
        /// Report what would be added, and add nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Print all sources as OPML.
    Export,
}

pub(crate) async fn run(feeds: &Feeds, command: OpmlCommand, output: OutputFormat) -> anyhow::Result<()> {
    match command {
        OpmlCommand::Export => print(&pitwheel_feeds::opml::write(&feeds.export().await?))?,
        OpmlCommand::Import { file, dry_run } => import(feeds, &file, dry_run, output).await?,
    }
    Ok(())
}

async fn import(
    feeds: &Feeds,
    file: &std::path::Path,
    dry_run: bool,
    output: OutputFormat,
) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read `{}`", file.display()))?;
    let list = pitwheel_feeds::opml::read(&text)?;
    let progress = Progress::new(list.outlines.len() as u64);
    let imported = feeds.import(&list, dry_run, |done| progress.reached(done, String::new())).await?;
    progress.finish();
    if output == OutputFormat::Json {
        let (added, known, invalid) = (imported.added, imported.known, &list.invalid);
        return print_json(
            &json!({ "dry_run": dry_run, "added": added, "known": known, "invalid": invalid }),
        );
    }
    for invalid in &list.invalid {
        print_message(&format!("`{}` cannot be fetched, it is left out", visible(invalid)));
    }
    let what = if dry_run { "would be added" } else { "added" };
    Ok(print(&format!("{} sources {what}, {} were there already", imported.added, imported.known))?)
}
