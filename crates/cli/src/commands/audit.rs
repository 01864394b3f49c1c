//! `pitwheel audit`: who changed what.

use std::time::SystemTime;

use pitwheel::AuditEntry;
use pitwheel_server::views::AuditLine;

use crate::database;
use crate::output::table::{Column, render};
use crate::output::{print, print_json, print_message};
use crate::page::{PageArgs, print_next_page};
use crate::settings::Settings;
use crate::time::relative;

/// Jobs whose ids a line shows. The rest is counted.
const JOBS_NAMED: usize = 3;

pub(crate) async fn run(page: &PageArgs, settings: &Settings) -> anyhow::Result<()> {
    let entries = database::open(settings).await?.audit(page.before, page.limit()).await?;
    let next = page.next(entries.iter().map(|entry| entry.id));
    if entries.is_empty() {
        print_message(match page.before {
            Some(_) => "there are no older changes",
            None => "no changes yet",
        });
    }
    if settings.json() {
        print_json(&entries.into_iter().map(AuditLine::from).collect::<Vec<_>>())?;
    } else if !entries.is_empty() {
        print(&table(&entries, SystemTime::now()))?;
    }
    print_next_page(next);
    Ok(())
}

fn table(entries: &[AuditEntry], now: SystemTime) -> String {
    let jobs = |entry: &AuditEntry| entry.job_ids.as_deref().map_or_else(String::new, named);
    let columns = vec![
        Column::new("ID", entries, |entry| entry.id.to_string()).numeric(),
        Column::new("WHEN", entries, |entry| relative(entry.at, now)),
        Column::new("WHO", entries, |entry| entry.actor.clone()).cut(),
        Column::new("WHAT", entries, |entry| entry.action.clone()),
        Column::new("SUBJECT", entries, |entry| entry.subject.clone().unwrap_or_default()).cut().optional(),
        Column::new("JOBS", entries, jobs).cut().optional(),
    ];
    render(columns)
}

/// The first ids, and the number of the others.
fn named(ids: &[i64]) -> String {
    let mut words: Vec<String> = ids.iter().take(JOBS_NAMED).map(ToString::to_string).collect();
    if ids.len() > JOBS_NAMED {
        words.push(format!("and {} more", ids.len() - JOBS_NAMED));
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_shows_a_few_ids_and_counts_the_rest() {
        let shown = [named(&[]), named(&[7]), named(&[1, 2, 3]), named(&[1, 2, 3, 4, 5])];
        assert_eq!(shown, ["", "7", "1 2 3", "1 2 3 and 2 more"]);
    }
}
