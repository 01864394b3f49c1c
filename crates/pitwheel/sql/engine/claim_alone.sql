-- claim_alone.sql: claims one suspect, a job that was running at two crashes or more, for a worker that runs nothing else.
-- Uses job_suspect, which has only such jobs; the conditions with `is true` cannot be used to read job_due instead. Same columns as
-- claim.sql.
-- Zero rows: no suspect is due, its queue is paused, or the worker was declared dead or is quiet.
with due as materialized (
    select job.ctid as tid, job.id
    from pitwheel.job
    where job.crashes >= 2
      and (job.run_at <= now()) is true
      and job.holder is null
      and (job.queue = any($2::text[])) is true
      and job.kind = any($3::text[])
      and exists (select from pitwheel.worker where worker.id = $1 and worker.dead_at is null and worker.quiet_at is null)
      and not exists (
          select from pitwheel.queue
          where queue.name in (job.queue, '*') and queue.paused_at is not null
      )
    order by job.run_at, job.id
    limit 1
    for no key update of job skip locked
),
held as (
    insert into pitwheel.hold (worker, job_ids)
    select $1, array_agg(due.id)
    from due
    having count(*) > 0
    returning hold.id
)
update pitwheel.job
set holder = $1, fence = job.fence + 1, attempt = job.attempt + 1, claimed_at = clock_timestamp()
where job.ctid = any (array(select due.tid from due))
returning job.id, job.fence, job.attempt, job.max_attempts, job.timeout_ms, job.run_at, job.priority, job.queue, job.kind,
    job.key, job.payload::text, job.metadata::text, job.ctid, job.recurring, job.lane, job.pipeline, job.step,
    job.recurring_key, job.cadence, job.misfire, job.version, job.anchor_at, job.interval_ms, job.claimed_at,
    (select held.id from held) as hold
