-- delete.sql: deletes waiting and finished jobs for good. The recurring job of a waiting run that is deleted skips that time; the
-- maintenance plans the next one. If that run was to start before its planned time, because a person asked for it, the planned time
-- stays. The pipeline of a waiting step that is deleted goes on as if it was cancelled. Recurring jobs and pipelines are locked
-- before jobs, as in 0005_recurring.sql and 0007_pipelines.sql.
-- Each job is found by one probe of job_pkey: with `limit 1` the planner cannot join the batch with a scan of the whole index.
-- The delete names the ids twice: the array is the index condition, and the join makes the order of job_pkey useful, so that
-- no plan reads all of job_pkey, once the table was analyzed without rows.
-- No row for an id: no job has it, or it is running.
with target as materialized (
    select job.id
    from (select distinct asked.id from unnest($1::bigint[]) as asked(id) order by asked.id) as asked
    cross join lateral (
        select job.id
        from pitwheel.job
        where job.id = asked.id
          and job.holder is null
          and (select pitwheel.lock_recurring_of_jobs($1::bigint[]))
        limit 1
        for update
    ) as job
),
waiting as (
    delete from pitwheel.job
    using target
    where job.id = any (array(select target.id from target))
      and job.id = target.id
    returning job.id, job.recurring, job.pipeline, job.step, pitwheel.state_of(job.*) as state
),
skipped as materialized (
    select pitwheel.skip_run(waiting.recurring, waiting.state, 'its next run was deleted')
    from waiting
    where waiting.recurring is not null
),
ended as materialized (
    select pitwheel.end_step(waiting.pipeline, waiting.step, waiting.id, 'cancelled', null)
    from waiting
    where waiting.pipeline is not null
),
finished as (
    delete from pitwheel.job_history
    where job_history.id = any($1::bigint[])
    returning job_history.id
),
gone as (
    select waiting.id from waiting union all select finished.id from finished
),
audited as (
    insert into pitwheel.audit (actor, action, job_ids)
    select $2, 'job.delete', array_agg(gone.id)
    from gone
    having count(*) > 0
)
select gone.id
from gone
where (select count(*) from ended) + (select count(*) from skipped) >= 0
