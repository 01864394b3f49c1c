-- claim_by_id.sql: claims the job $2 for the worker $1, if it waits, also before its time, and records it in a hold. Waits for a
-- transaction that has locked it, so of several callers one gets the job. If a person asked for it, $4 is their name in the audit
-- log. Same columns as claim.sql.
-- Uses job_pkey; `is distinct from` cannot be used to read job_due instead.
-- Zero rows: claim_refusal.sql says why; or the worker was declared dead or is quiet.
with due as materialized (
    select job.ctid as tid, job.id
    from pitwheel.job
    where job.id = $2
      and job.holder is null
      and job.run_at is distinct from 'infinity'
      and job.attempt < job.max_attempts
      and job.kind = any($3::text[])
      and exists (select from pitwheel.worker where worker.id = $1 and worker.dead_at is null and worker.quiet_at is null)
      and not exists (
          select from pitwheel.queue
          where queue.name in (job.queue, '*') and queue.paused_at is not null
      )
    for no key update of job
),
held as (
    insert into pitwheel.hold (worker, job_ids)
    select $1, array_agg(due.id)
    from due
    having count(*) > 0
    returning hold.id
),
audited as (
    insert into pitwheel.audit (actor, action, job_ids)
    select $4::text, 'job.claim', array_agg(due.id)
    from due
    where $4::text is not null
    having count(*) > 0
)
update pitwheel.job
set holder = $1, fence = job.fence + 1, attempt = job.attempt + 1, claimed_at = clock_timestamp()
where job.ctid = any (array(select due.tid from due))
returning job.id, job.fence, job.attempt, job.max_attempts, job.timeout_ms, job.run_at, job.priority, job.queue, job.kind,
    job.key, job.payload::text, job.metadata::text, job.ctid, job.recurring, job.lane, job.pipeline, job.step,
    job.recurring_key, job.cadence, job.misfire, job.version, job.anchor_at, job.interval_ms, job.claimed_at,
    (select held.id from held) as hold
