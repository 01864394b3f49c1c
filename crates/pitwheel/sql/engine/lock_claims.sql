-- lock_claims.sql: waits for the rows of many claimed jobs, in the caller's own transaction, as lock_claim.sql does for one. Returns
-- the recurring job that each is a run of. Recurring jobs and pipelines are locked first, in the order of their ids; then jobs, in
-- the order given.
-- A holder of 0 is not known, and then not compared.
-- Rows not returned: that claim no longer holds the job. Uses job_pkey, recurring_pkey and
-- pipeline_pkey.
with given as materialized (
    select given.id, given.fence, nullif(given.holder, 0) as holder
    from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as given(id, fence, holder)
)
select job.id, job.recurring
from given
cross join lateral (
    select job.id, job.recurring
    from pitwheel.job
    where job.id = given.id
      and job.fence = given.fence
      and job.holder = coalesce(given.holder, job.holder)
      and (select pitwheel.lock_recurring_of_jobs($1::bigint[]))
    limit 1
    for update
) as job
