-- complete.sql: the claimed jobs are done and leave no history; holds that were emptied before go too.
-- Finds each row by the ctid it had when it was claimed: one page instead of a walk down an index.
-- Rows not returned: the row has moved since, or that claim no longer holds the job; finish.sql tells.
with emptied as (
    delete from pitwheel.hold
    where hold.id = any($4::bigint[])
)
delete from pitwheel.job
using unnest($1::bigint[], $2::bigint[], $3::tid[]) as done(id, fence, tid)
where job.ctid = done.tid
  and job.id = done.id
  and job.fence = done.fence
  and job.holder is not null
returning job.id, job.fence
