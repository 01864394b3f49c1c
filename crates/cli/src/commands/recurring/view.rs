//! Recurring jobs as a table, and one as a page.

use std::time::SystemTime;

use anstyle::AnsiColor;
use pitwheel::{RecurringDetail, RecurringJob};
use pitwheel_server::views;

use crate::output::json::pretty;
use crate::output::table::{Column, render};
use crate::output::visible;
use crate::time::relative;

/// A table of recurring jobs.
pub(super) fn table(recurring: &[RecurringJob], now: SystemTime) -> String {
    let when = |time: Option<SystemTime>| time.map_or_else(String::new, |time| relative(time, now));
    let columns = vec![
        Column::new("ID", recurring, |job| job.id.to_string()).numeric(),
        Column::new("STATE", recurring, |job| state(job).to_owned()).coloured(colour),
        Column::new("KIND", recurring, |job| job.kind.clone()).cut(),
        Column::new("KEY", recurring, |job| job.key.clone()).cut(),
        Column::new("CADENCE", recurring, |job| job.cadence.clone()).cut(),
        Column::new("NEXT", recurring, |job| when(job.next_run_at.filter(|_| job.enabled && !job.running))),
        Column::new("LAST", recurring, |job| when(job.last_run_at)).optional(),
        Column::new("RUNS", recurring, |job| job.runs.to_string()).numeric(),
        Column::new("FAILURES", recurring, |job| match job.consecutive_failures {
            0 => String::new(),
            failures => failures.to_string(),
        })
        .numeric()
        .optional(),
    ];
    render(columns)
}

fn state(job: &RecurringJob) -> &'static str {
    match (job.running, job.enabled) {
        (true, _) => "running",
        (false, true) => "enabled",
        (false, false) => "disabled",
    }
}

fn colour(state: &str) -> Option<AnsiColor> {
    match state {
        "running" => Some(AnsiColor::Cyan),
        "disabled" => Some(AnsiColor::Yellow),
        _ => None,
    }
}

/// One recurring job with all its fields.
pub(super) fn page(recurring: &RecurringDetail, now: SystemTime) -> String {
    let job = &recurring.summary;
    let time = |time: SystemTime| format!("{}  ({})", views::time(time), relative(time, now));
    let span = |span: std::time::Duration| format!("{} s", span.as_secs_f64());
    let lines = [
        ("recurring job", Some(job.id.to_string())),
        ("state", Some(state(job).to_owned())),
        ("kind", Some(job.kind.clone())),
        ("key", Some(visible(&job.key))),
        ("queue", Some(job.queue.clone())),
        ("priority", (job.priority != 0).then(|| job.priority.to_string())),
        ("cadence", Some(visible(&job.cadence))),
        ("misfire", Some(job.misfire.as_str().to_owned())),
        ("interval", job.interval.map(span)),
        ("timeout", job.timeout.map(span)),
        ("attempts", job.max_attempts.map(|max| format!("at most {max} per run"))),
        ("next run", job.next_run_at.map(time)),
        ("why then", job.reason.as_deref().map(visible)),
        ("last run", job.last_run_at.map(time)),
        ("runs", Some(job.runs.to_string())),
        ("skipped", (job.skipped > 0).then(|| job.skipped.to_string())),
        (
            "failures",
            (job.consecutive_failures > 0).then(|| format!("{} in a row", job.consecutive_failures)),
        ),
        ("last error", job.last_error.as_deref().map(visible)),
        ("created", Some(time(job.created_at))),
        ("changed", Some(time(job.updated_at))),
    ];
    let mut text = String::new();
    for (name, value) in lines {
        if let Some(value) = value {
            text.push_str(&format!("{name:<13} {value}\n"));
        }
    }
    for (title, json) in [("payload", Some(&recurring.payload)), ("metadata", recurring.metadata.as_ref())] {
        if let Some(json) = json {
            text.push_str(&format!("\n{title}\n"));
            pretty(json).lines().for_each(|line| text.push_str(&format!("  {}\n", visible(line))));
        }
    }
    text
}

/// Times, one per line.
pub(super) fn times(times: &[SystemTime], now: SystemTime) -> String {
    times.iter().map(|time| format!("{}  ({})\n", views::time(*time), relative(*time, now))).collect()
}
