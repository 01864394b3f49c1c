-- complete.sql: the claimed jobs are done and leave no history. Holds that were emptied before are deleted.
-- Finds each row by the ctid it had when it was claimed: one page read instead of an index lookup.
-- Rows not returned: the row has moved since, or that claim no longer holds the job; finish.sql decides.
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
