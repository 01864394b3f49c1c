//! Jobs are changed by their ids or by a filter, one or thousands.

use pitwheel::{Context, Job, Pitwheel, Worker};
use pitwheel_testkit::{block_until, psql, start_worker};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::{Db, Result};

/// More than one page, and more than one statement.
const MANY: usize = 1500;

fn enqueue_many(db: &Db, kind: &str) -> Result {
    let sql = format!("select count(pitwheel.enqueue('{kind}', '{{}}')) from generate_series(1, {MANY})");
    psql(&db.url, &sql)?;
    Ok(())
}

fn count(db: &Db, what: &str) -> Result<usize> {
    Ok(psql(&db.url, &format!("select count(*) from pitwheel.{what}"))?.parse()?)
}

/// How many jobs have this outcome.
fn count_outcome(outcomes: &Value, outcome: &str) -> usize {
    let outcomes = outcomes.as_array().map_or(&[] as &[Value], Vec::as_slice);
    outcomes.iter().filter(|job| job["outcome"] == outcome && job["id"].is_i64()).count()
}

#[test]
fn a_filter_changes_all_jobs_that_match_and_no_others() -> Result {
    let db = Db::migrated()?;
    enqueue_many(&db, "bulk")?;
    let other = db.enqueue(&["other", "--queue", "mail", "--key", "seven"])?.to_string();

    let moved = db.run(&["jobs", "reschedule", "--state", "waiting", "--kind", "bulk", "--in", "1h"])?;
    assert_eq!(moved.with_code(0)?.err, "1,500 jobs rescheduled, due in 1 h\n");
    assert_eq!(count(&db, "job where run_at > now() + interval '50 minutes'")?, MANY);
    let cancelled = db.run(&["jobs", "cancel", "--state", "waiting", "--queue", "default"])?.with_code(0)?;
    assert_eq!((cancelled.out.as_str(), cancelled.err.as_str()), ("", "1,500 jobs cancelled\n"));
    let retried = db.json(&["jobs", "retry", "--state", "cancelled"])?;
    assert_eq!((count_outcome(&retried, "retried"), retried.as_array().map(Vec::len)), (MANY, Some(MANY)));
    assert_eq!(count(&db, "job where run_at <= now()")?, MANY + 1);
    let deleted = db.json(&["jobs", "delete", "--state", "waiting", "--kind", "bulk"])?;
    assert_eq!(count_outcome(&deleted, "deleted"), MANY);

    let left = db.json(&["jobs", "list"])?;
    assert_eq!(left.as_array().map(Vec::len), Some(1));
    assert_eq!(left[0]["id"].to_string(), other);
    let one = db.run(&["jobs", "cancel", "--state", "waiting", "--key", "seven"])?.with_code(0)?;
    assert_eq!(one.err, "1 job cancelled\n");
    Ok(())
}

#[test]
fn more_ids_than_fit_in_one_statement_are_all_changed() -> Result {
    let db = Db::migrated()?;
    enqueue_many(&db, "bulk")?;
    let ids = psql(&db.url, "select id from pitwheel.job order by id")?;
    let mut args = vec!["jobs", "delete", "-o", "json"];
    args.extend(ids.lines());
    args.push("999999");

    let deleted = db.run(&args)?.with_code(3)?;
    deleted.assert_error("job 999999 was not found: no waiting or finished job has this id");
    let outcomes = deleted.json()?;
    assert_eq!((count_outcome(&outcomes, "deleted"), count_outcome(&outcomes, "not_found")), (MANY, 1));
    assert_eq!(outcomes[0]["id"].to_string(), ids.lines().next().unwrap_or_default());
    assert_eq!(count(&db, "job")?, 0);
    Ok(())
}

#[test]
fn jobs_are_deleted_and_rescheduled_by_id() -> Result {
    let db = Db::migrated()?;
    let id = db.enqueue(&["greet", "--delay", "1d"])?.to_string();
    let run_at = || -> Result<String> {
        Ok(db.json(&["jobs", "show", &id])?["run_at"].as_str().ok_or("no time")?.to_owned())
    };

    let at = ["jobs", "reschedule", &id, "--at", "2099-01-31T09:00:00+01:00"];
    assert_eq!(db.json(&at)?, json!([{ "id": id.parse::<i64>()?, "outcome": "rescheduled" }]));
    assert_eq!(run_at()?, "2099-01-31T08:00:00Z");
    let later = db.run(&["jobs", "reschedule", &id, "--in", "10m"])?.with_code(0)?;
    assert_eq!(later.err, format!("job {id} is due in 10 m\n"));
    let now = db.run(&["jobs", "reschedule", &id])?.with_code(0)?;
    assert_eq!(now.err, format!("job {id} is due now\n"));
    assert_eq!(count(&db, "job where run_at <= now()")?, 1);
    let past = db.run(&["jobs", "reschedule", &id, "--at", "2000-01-01T00:00:00Z"])?.with_code(0)?;
    assert_eq!(past.err, format!("job {id} is due now\n"));

    let deleted = db.run(&["jobs", "delete", &id])?.with_code(0)?;
    assert_eq!(deleted.err, format!("job {id} is deleted\n"));
    db.run(&["jobs", "show", &id])?.with_code(3)?;
    db.run(&["jobs", "delete", &id])?.with_code(3)?.assert_error("was not found");
    let missing = db.run(&["jobs", "reschedule", &id])?.with_code(3)?;
    missing.assert_error("no waiting job has this id");
    Ok(())
}

#[test]
fn a_change_without_ids_or_a_complete_filter_is_refused() -> Result {
    let db = Db::migrated()?;
    let id = db.enqueue(&["greet"])?.to_string();
    let wrong: [(&[&str], &str); 9] = [
        (&["retry"], "give the ids of jobs, or a filter, as in `--queue mail --state dead`"),
        (&["delete", &id, "--state", "waiting"], "give ids or a filter, not both"),
        (&["delete", &id, "--queue", "default"], "give ids or a filter, not both"),
        (&["cancel", "--queue", "default"], "a filter must name a state"),
        (&["cancel", "--key", "seven"], "add `--state` with waiting, blocked or running"),
        (
            &["retry", "--state", "waiting"],
            "a job that is waiting cannot be retried: `--state` must be dead or cancelled",
        ),
        (&["delete", "--state", "running"], "must be waiting, blocked, done, dead or cancelled"),
        (&["reschedule", "--state", "dead"], "`--state` must be waiting or blocked"),
        (&["cancel", "--state", "waiting", "--queue", "no name"], "queue `no name` is not a name"),
    ];
    for (args, words) in wrong {
        db.run(&[&["jobs"], args].concat())?.with_code(2)?.assert_error(words);
    }
    for args in [["--in", "10"], ["--at", "tomorrow"], ["--in", "-5s"]] {
        db.run(&[&["jobs", "reschedule", &id], &args[..]].concat())?.with_code(2)?;
    }
    db.run(&["jobs", "reschedule", &id, "--in", "99999d"])?.with_code(2)?.assert_error("more than 100 years");
    let both = ["jobs", "reschedule", &id, "--in", "1h", "--at", "2099-01-31T08:00:00Z"];
    db.run(&both)?.with_code(2)?;
    assert_eq!(count(&db, "audit")?, 0);
    Ok(())
}

#[test]
fn a_filter_without_matches_is_reported_and_is_no_failure() -> Result {
    let db = Db::migrated()?;
    db.enqueue(&["greet"])?;
    let none = db.run(&["jobs", "retry", "--state", "dead"])?.with_code(0)?;
    assert!(none.err.starts_with("no jobs match"), "{none:#?}");
    assert_eq!(db.json(&["jobs", "delete", "--state", "waiting", "--queue", "other"])?, json!([]));
    Ok(())
}

#[test]
fn jobs_that_a_filter_could_not_change_are_reported_with_the_reason() -> Result {
    let db = Db::migrated()?;
    let first = db.enqueue(&["invoice", "--key", "seven"])?;
    let second = db.enqueue(&["greet"])?;
    db.run(&["jobs", "cancel", "--state", "waiting"])?.with_code(0)?;
    db.enqueue(&["invoice", "--key", "seven"])?;

    let retried = db.run(&["jobs", "retry", "--state", "cancelled"])?.with_code(1)?;
    let why = "a live job has the same kind and key, cancel that one first";
    assert_eq!(retried.err, format!("1 job retried\nerror: 1 job not retried: {why}\n"));
    db.run(&["jobs", "cancel", &second.to_string()])?.with_code(0)?;
    let again = db.run(&["jobs", "retry", "--state", "cancelled", "-o", "json"])?.with_code(1)?;
    let expected = json!([{ "id": second, "outcome": "retried" }, { "id": first, "outcome": "key_taken" }]);
    assert_eq!(again.json()?, expected);
    Ok(())
}

#[derive(Serialize, Deserialize)]
struct Endless {}

impl Job for Endless {
    const KIND: &'static str = "endless";
}

async fn wait_for_cancel(_: Endless, context: Context) -> Result<(), &'static str> {
    context.cancelled().await;
    Err("stopped")
}

#[test]
fn a_cancel_asks_running_jobs_to_stop() -> Result {
    let db = Db::migrated()?;
    let id = db.enqueue(&["endless"])?.to_string();
    let runtime = tokio::runtime::Runtime::new()?;
    let worker = runtime.block_on(async {
        let pitwheel = Pitwheel::connect(&db.url).await?;
        let worker = Worker::new(&pitwheel).queue("default", 2).handle(wait_for_cancel);
        Ok::<_, pitwheel::Error>(start_worker(worker))
    })?;
    let in_state = |state: &str| {
        let listed = db.json(&["jobs", "list", "--state", state]);
        listed.map_or(0, |jobs| jobs.as_array().map_or(0, Vec::len))
    };
    block_until("the job runs", || in_state("running") == 1)?;
    let refused = db.run(&["jobs", "delete", &id])?.with_code(3)?;
    refused.assert_error("a running job can be cancelled");
    let output = db.run(&["jobs", "cancel", &id])?.with_code(0)?;
    assert!(output.err.contains("its handler is asked to stop"), "{output:#?}");
    block_until("the job is cancelled", || in_state("cancelled") == 1)?;

    db.enqueue(&["endless"])?;
    db.enqueue(&["endless"])?;
    block_until("both jobs run", || in_state("running") == 2)?;
    let output = db.run(&["jobs", "cancel", "--state", "running"])?.with_code(0)?;
    assert_eq!(output.err, "2 jobs asked to stop\n");
    block_until("both jobs are cancelled", || in_state("cancelled") == 3)?;
    runtime.block_on(worker.stop())?;
    Ok(())
}
