-- cancel.sql: cancels waiting jobs, which move to the history, and requests the cancel of running ones.
-- The rows are locked first, so that no claim comes between the two parts. The recurring job of a waiting run that is cancelled
-- skips that time; the maintenance plans the next one. If that run was to start before its planned time, because a person asked for
-- it, the planned time stays. The pipeline of a waiting step that is cancelled goes on, or skips what comes after it.
-- Recurring jobs and pipelines are locked before jobs, as in 0005_recurring.sql and 0007_pipelines.sql.
-- Each job is found by one probe of job_pkey: with `limit 1` the planner cannot join the batch with a scan of the whole index.
-- The changes name the ids twice: the array is the index condition, and the join makes the order of job_pkey useful, so that
-- no plan reads all of job_pkey, once the table was analyzed without rows.
-- No row for an id: no live job has it.
with target as materialized (
    select job.id, job.holder
    from (select distinct asked.id from unnest($1::bigint[]) as asked(id) order by asked.id) as asked
    cross join lateral (
        select job.id, job.holder
        from pitwheel.job
        where job.id = asked.id
          and (select pitwheel.lock_recurring_of_jobs($1::bigint[]))
        limit 1
        for no key update
    ) as job
),
gone as (
    delete from pitwheel.job
    using target
    where job.id = any (array(select target.id from target where target.holder is null))
      and job.id = target.id
    returning job.id, job.run_at, job.enqueued_at, job.fence, job.holder, job.claimed_at, job.timeout_ms, job.attempt,
        job.max_attempts, job.priority, job.crashes, job.queue, job.kind, job.key, job.payload, job.metadata, job.note,
        job.errors, job.recurring, job.lane, job.lane_pass, job.lane_at, job.pipeline, job.step, pitwheel.state_of(job.*) as state
),
kept as (
    insert into pitwheel.job_history (
        id, finished_at, run_at, enqueued_at, fence, worker, claimed_at, timeout_ms, attempt, max_attempts, priority,
        crashes, state, queue, kind, key, payload, metadata, note, errors, recurring, lane, lane_pass,
        pipeline, step
    )
    select gone.id, clock_timestamp(),
        case when gone.run_at = 'infinity' then coalesce(gone.lane_at, gone.enqueued_at) else gone.run_at end,
        gone.enqueued_at, gone.fence, gone.holder, gone.claimed_at, gone.timeout_ms, gone.attempt, gone.max_attempts,
        gone.priority, gone.crashes, 'cancelled', gone.queue, gone.kind, gone.key, gone.payload, gone.metadata, gone.note,
        gone.errors, gone.recurring, gone.lane, gone.lane_pass, gone.pipeline, gone.step
    from gone
),
skipped as materialized (
    select pitwheel.skip_run(gone.recurring, gone.state, 'its next run was cancelled')
    from gone
    where gone.recurring is not null
),
ended as materialized (
    select pitwheel.end_step(gone.pipeline, gone.step, gone.id, 'cancelled', null)
    from gone
    where gone.pipeline is not null
),
asked as (
    update pitwheel.job
    set cancel_requested_at = coalesce(job.cancel_requested_at, clock_timestamp())
    from target
    where job.id = any (array(select target.id from target where target.holder is not null))
      and job.id = target.id
),
audited as (
    insert into pitwheel.audit (actor, action, job_ids)
    select $2, 'job.cancel', array_agg(target.id)
    from target
    having count(*) > 0
)
select target.id, target.holder is not null as running
from target
where (select count(*) from ended) + (select count(*) from skipped) >= 0
