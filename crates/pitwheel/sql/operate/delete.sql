-- delete.sql: deletes waiting and finished jobs for good. The recurring job of a waiting run that is deleted skips that time; the
-- maintenance plans the next one. Recurring jobs are locked before jobs, as in 0005_recurring.sql.
-- A job is found by a range of one id, in the order of ids: only job_pkey has that order. With `=` a plan could read all of
-- job_due, which ends with the id, once the table was analyzed without rows.
-- The delete names the ids twice: the array is the index condition, and the join makes the order of job_pkey useful, so that
-- no plan reads all of job_pkey or job_due, once the table was analyzed without rows.
-- No row for an id: no job has it, or it is running.
with target as materialized (
    select job.id
    from (select distinct asked.id from unnest($1::bigint[]) as asked(id) order by asked.id) as asked
    cross join lateral (
        select job.id
        from pitwheel.job
        where job.id >= asked.id
          and job.id <= asked.id
          and job.holder is null
          and (select pitwheel.lock_recurring_of_jobs($1::bigint[]))
        order by job.id
        limit 1
        for update
    ) as job
),
waiting as (
    delete from pitwheel.job
    using target
    where job.id = any (array(select target.id from target))
      and job.id = target.id
    returning job.id, job.recurring
),
unplanned as (
    update pitwheel.recurring
    set planned = false, next_run_at = null, skipped = recurring.skipped + 1, reason = 'its next run was deleted'
    where recurring.id = any (array(select waiting.recurring from waiting))
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
