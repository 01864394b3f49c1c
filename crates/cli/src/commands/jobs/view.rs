//! Jobs as a table, and one job as a page.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::SystemTime;

use anstyle::AnsiColor;
use pitwheel::{JobDetail, JobSummary, State};
use pitwheel_server::views;
use serde_json::Value;

use crate::output::json::pretty;
use crate::output::table::{Column, render};
use crate::output::visible;
use crate::time::{parse_time, relative};

/// A table of jobs.
pub(crate) fn table(jobs: &[JobSummary], now: SystemTime) -> String {
    let columns = vec![
        Column::new("ID", jobs, |job| job.id.to_string()).numeric(),
        Column::new("STATE", jobs, |job| job.state.as_str().to_owned()).coloured(colour),
        Column::new("KIND", jobs, |job| job.kind.clone()).cut(),
        Column::new("QUEUE", jobs, |job| job.queue.clone()).cut(),
        Column::new("PRIORITY", jobs, |job| match job.priority {
            0 => String::new(),
            priority => priority.to_string(),
        })
        .numeric()
        .optional(),
        Column::new("KEY", jobs, |job| job.key.clone().unwrap_or_default()).cut().optional(),
        Column::new("LANE", jobs, |job| job.lane.clone().unwrap_or_default()).cut().optional(),
        Column::new("ATTEMPT", jobs, |job| attempts(job, "/")).numeric(),
        Column::new("WHEN", jobs, |job| when(job, now)),
        Column::new("PROGRESS", jobs, progress).cut().optional(),
    ];
    render(columns)
}

fn colour(state: &str) -> Option<AnsiColor> {
    match state {
        "running" => Some(AnsiColor::Cyan),
        "done" => Some(AnsiColor::Green),
        "dead" => Some(AnsiColor::Red),
        "cancelled" => Some(AnsiColor::Yellow),
        _ => None,
    }
}

/// The most relevant time for the state of the job.
fn when(job: &JobSummary, now: SystemTime) -> String {
    match (job.state, job.claimed_at, job.finished_at) {
        (State::Blocked, ..) => "behind another".to_owned(),
        (State::Waiting, ..) if job.unserved => format!("due {}, no worker", relative(job.run_at, now)),
        (State::Waiting, ..) => format!("due {}", relative(job.run_at, now)),
        (State::Running, Some(claimed_at), _) => format!("began {}", relative(claimed_at, now)),
        (_, _, Some(finished_at)) => format!("ended {}", relative(finished_at, now)),
        _ => String::new(),
    }
}

/// The number of attempts, and the maximum if there is one: a run of a recurring job has none.
fn attempts(job: &JobSummary, of: &str) -> String {
    match job.max_attempts {
        i32::MAX => job.attempt.to_string(),
        max => format!("{}{of}{max}", job.attempt),
    }
}

fn progress(job: &JobSummary) -> String {
    let percent = job.progress.map(|progress| format!("{:.0} %", progress * 100.0));
    let words: Vec<String> = [percent, job.note.clone()].into_iter().flatten().collect();
    words.join(" ")
}

/// One job with all its fields.
pub(crate) fn page(job: &JobDetail, now: SystemTime) -> String {
    let summary = &job.summary;
    let time = |time: SystemTime| format!("{}  ({})", views::time(time), relative(time, now));
    let crashes = format!("{}: its worker died while it ran", job.crashes);
    let progress = Some(progress(summary)).filter(|words| !words.is_empty());
    let lines = [
        ("job", Some(summary.id.to_string())),
        ("state", Some(painted(summary.state))),
        ("kind", Some(summary.kind.clone())),
        ("queue", Some(summary.queue.clone())),
        ("key", summary.key.as_deref().map(visible)),
        ("lane", summary.lane.as_deref().map(visible)),
        ("priority", (summary.priority != 0).then(|| summary.priority.to_string())),
        ("attempts", Some(attempts(summary, " of "))),
        ("crashes", (job.crashes > 0).then_some(crashes)),
        ("timeout", job.timeout_ms.map(|millis| format!("{} s", millis as f64 / 1000.0))),
        ("progress", progress.as_deref().map(visible)),
        ("worker", job.worker.as_deref().map(visible)),
        ("run of", job.recurring.map(|id| format!("recurring job {id}"))),
        ("step", job.step.as_ref().zip(job.pipeline).map(|(step, id)| format!("{step} of pipeline {id}"))),
        ("enqueued", Some(time(summary.enqueued_at))),
        ("due", Some(time(summary.run_at))),
        ("began", summary.claimed_at.map(time)),
        ("ended", summary.finished_at.map(time)),
        ("cancel asked", job.cancel_requested_at.map(time)),
    ];
    let mut text = String::new();
    for (name, value) in lines {
        if let Some(value) = value {
            push(&mut text, format_args!("{name:<13} {value}\n"));
        }
    }
    section(&mut text, "payload", Some(&job.payload));
    section(&mut text, "metadata", job.metadata.as_deref());
    section(&mut text, "result", job.result.as_deref());
    failures(&mut text, &job.errors, now);
    text
}

fn section(text: &mut String, title: &str, json: Option<&str>) {
    if let Some(json) = json {
        push(text, format_args!("\n{title}\n"));
        for line in pretty(json).lines() {
            push(text, format_args!("  {}\n", visible(line)));
        }
    }
}

fn failures(text: &mut String, errors: &Value, now: SystemTime) {
    let errors = errors.as_array().map_or(&[] as &[Value], Vec::as_slice);
    if !errors.is_empty() {
        text.push_str("\nfailed attempts\n");
    }
    for error in errors {
        let word = |name: &str| visible(error[name].as_str().unwrap_or("?"));
        let at = error["at"].as_str().and_then(|at| parse_time(at).ok());
        let at = at.map_or_else(|| word("at"), |at| format!("{}  ({})", views::time(at), relative(at, now)));
        let (attempt, cause, worker) = (error["attempt"].to_string(), word("cause"), word("worker"));
        push(text, format_args!("  {attempt:>3}  {cause:<8} {at}  on {worker}\n"));
        for line in error["message"].as_str().unwrap_or_default().lines() {
            push(text, format_args!("       {}\n", visible(line)));
        }
    }
}

/// What to do about jobs that no live worker takes; `None`: there are none.
pub(crate) fn unserved(jobs: &[JobSummary]) -> Option<String> {
    let kinds: BTreeSet<&str> = jobs.iter().filter(|job| job.unserved).map(|job| job.kind.as_str()).collect();
    let named: Vec<String> = kinds.into_iter().map(|kind| format!("`{}`", visible(kind))).collect();
    let what = match named.len() {
        0 => return None,
        1 => "kind",
        _ => "kinds",
    };
    Some(format!("no live worker takes the {what} {}: start one with a handler for it", named.join(", ")))
}

/// The command that one may want next; `None` for a job that is done.
pub(crate) fn hint(job: &JobSummary) -> Option<String> {
    let (command, effect) = match job.state {
        State::Dead | State::Cancelled => ("retry", "runs it again"),
        State::Waiting | State::Blocked | State::Running => ("cancel", "cancels it"),
        _ => return None,
    };
    Some(format!("`pitwheel jobs {command} {}` {effect}", job.id))
}

/// The state in its colour.
fn painted(state: State) -> String {
    let style = colour(state.as_str()).map(AnsiColor::on_default).unwrap_or_default();
    format!("{style}{}{style:#}", state.as_str())
}

/// Appends to a string, which cannot fail.
fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(line);
}
