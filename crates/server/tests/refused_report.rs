//! A result that Postgres refuses fails alone: the other results of its report, and reports of other workers in the same batch,
//! are written.

mod support;

use std::time::Duration;

use anyhow::Result;
use futures_util::future::join_all;
use pitwheel::{Context, State, Worker};
use pitwheel_proto::v1;
use pitwheel_proto::v1::result::Outcome;
use pitwheel_testkit::{TestDb, Work, start_worker, wait_until, work};

use crate::support::{Node, result};

/// How many jobs are reported at once, each in a report of its own. The server writes such reports together.
const REPORTS: usize = 20;
/// Postgres refuses this result, as it may refuse what a check of the server lets through.
const REFUSE: &str = r#"
    create function refuse() returns trigger language plpgsql as $$
    begin
        if new.result::text = '"refused"' then
            raise exception 'this result is refused' using errcode = '22023';
        end if;
        return new;
    end $$;
    create trigger refuse before insert on pitwheel.job_history for each row execute function refuse()"#;

#[tokio::test]
async fn a_refused_report_does_not_fail_the_others_of_its_batch() -> Result<()> {
    let db = TestDb::new().await?;
    db.client().await?.batch_execute(REFUSE).await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let mut stream = node.stream(REPORTS as u32).await?;
    for refused in [0, REPORTS / 2, REPORTS - 1] {
        db.pitwheel().enqueue_many((0..REPORTS as i64).map(work)).await?;
        let jobs = stream.jobs_at_least(REPORTS).await?;
        let reports = jobs.iter().enumerate().map(|(n, job)| {
            let kept = if n == refused { "\"refused\"" } else { "\"kept\"" };
            let complete = v1::Complete { result: Some(kept.into()), ..v1::Complete::default() };
            let results = vec![result(job, Outcome::Complete(complete))];
            let mut client = stream.client.clone();
            async move { client.report_result(v1::ReportResultRequest { results }).await }
        });
        let responses = join_all(reports).await;
        for (n, response) in responses.into_iter().enumerate() {
            let written = response.is_ok_and(|it| it.get_ref().written == [i32::from(v1::Written::Yes)]);
            assert_eq!(written, n != refused, "report {n}, of which {refused} is refused");
        }
        assert_eq!(db.state(jobs[refused].job_id).await?, Some(State::Running), "nothing was written for it");
        stream.complete(&jobs[refused]).await?;
    }
    node.stop().await
}

#[tokio::test]
async fn a_refused_result_does_not_fail_the_others_of_its_report() -> Result<()> {
    let db = TestDb::new().await?;
    db.client().await?.batch_execute(REFUSE).await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let mut stream = node.stream(REPORTS as u32).await?;
    db.pitwheel().enqueue_many((0..REPORTS as i64).map(work)).await?;
    let jobs = stream.jobs_at_least(REPORTS).await?;
    let refused = [3, 4, REPORTS - 1];
    let results = jobs.iter().enumerate().map(|(n, job)| {
        let kept = match n {
            n if refused.contains(&n) => Some("\"refused\"".to_owned()),
            n if n % 2 == 0 => Some("\"kept\"".to_owned()),
            _ => None,
        };
        result(job, Outcome::Complete(v1::Complete { result: kept, ..v1::Complete::default() }))
    });
    let results = results.collect();
    let response = stream.client.report_result(v1::ReportResultRequest { results }).await?.into_inner();
    for (n, job) in jobs.iter().enumerate() {
        let (written, problem) = (v1::Written::try_from(response.written[n])?, &response.problems[n]);
        if refused.contains(&n) {
            assert_eq!(written, v1::Written::Refused, "result {n}");
            assert!(problem.contains("this result is refused"), "{problem}");
            assert_eq!(db.state(job.job_id).await?, Some(State::Running));
            let fail = v1::Fail { error: problem.clone(), ..v1::Fail::default() };
            assert_eq!(stream.report(job, Outcome::Fail(fail)).await?, v1::Written::Yes);
        } else {
            assert_eq!((written, problem.as_str()), (v1::Written::Yes, ""), "result {n}");
            assert_eq!(db.state(job.job_id).await?, Some(State::Done));
        }
    }
    node.stop().await
}

/// Postgres refuses every ending of a job while the table `refusing` has a row. The sequence counts what it refused.
const REFUSE_ALL: &str = r#"
    create sequence refused;
    create table refusing as select 1 as n;
    create function refuse_all() returns trigger language plpgsql as $$
    begin
        if exists (select from refusing) then
            perform nextval('refused');
            raise exception 'this is refused' using errcode = '22023';
        end if;
        return new;
    end $$;
    create trigger refuse_all before update on pitwheel.job for each row
        when (old.holder is not null and new.holder is null) execute function refuse_all()"#;

#[tokio::test]
async fn a_remote_worker_reports_a_refused_failure_until_it_is_written() -> Result<()> {
    let db = TestDb::new().await?;
    let client = db.client().await?;
    client.batch_execute(REFUSE_ALL).await?;
    let node = Node::start(db.pitwheel(), Duration::from_secs(30)).await?;
    let handler = async |_: Work, _: Context| Err::<(), _>("no");
    let running = start_worker(Worker::remote(&node.url()).queue("default", 2).handle(handler));
    // Two at a time, so that their results may be in one report, and one alone.
    let jobs = db.pitwheel().enqueue_many((0..2).map(work)).await?;
    let refused = "select case when is_called then last_value else 0 end from refused";
    wait_until("several reports were refused", async || Ok(db.count(refused).await? > 4)).await?;
    client.batch_execute("delete from refusing").await?;
    for job in jobs {
        wait_until("it waits", async || Ok(db.state(job.id).await? == Some(State::Waiting))).await?;
        let message = db.pitwheel().job(job.id).await?.errors[0]["message"].to_string();
        assert!(message.contains("this is refused"), "{message}");
    }
    assert_eq!(running.stop().await?.lost, 0);
    node.stop().await
}
