-- delete.sql: deletes waiting and finished jobs for good.
-- No row for an id: no job has it, or it is running.
with target as materialized (
    select job.id
    from pitwheel.job
    where job.id = any($1::bigint[])
      and job.holder is null
    order by job.id
    for update
),
waiting as (
    delete from pitwheel.job
    using target
    where job.id = target.id
    returning job.id
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
