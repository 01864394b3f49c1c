//! `pitwheel-ingest rejected`.

use clap::Args;
use pitwheel_app::output::{print, print_message};
use pitwheel_ingest::rejected::{HEADER, csv};
use pitwheel_ingest::{Ingest, PAGE_MAX};

#[derive(Debug, Args)]
pub(crate) struct RejectedArgs {
    /// The id of the job
    job: i64,
}

pub(crate) async fn run(ingest: &Ingest, args: RejectedArgs) -> anyhow::Result<()> {
    let mut page = ingest.rejected(args.job, 0, PAGE_MAX).await?;
    if page.is_empty() {
        print_message(&format!("job {} rejected no rows", args.job));
        return Ok(());
    }
    print(HEADER)?;
    while let Some(last) = page.last() {
        let after = last.line;
        print(&csv(&page))?;
        page = ingest.rejected(args.job, after, PAGE_MAX).await?;
    }
    Ok(())
}
