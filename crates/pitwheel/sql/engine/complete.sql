-- complete.sql: the claimed jobs are done and leave no history. Holds that were emptied before are deleted.
-- Finds each row by the ctid it had when it was claimed: one page read instead of an index lookup. The ctids are an array,
-- because a join could be planned as a scan of job_pkey.
-- Rows not returned: the row has moved since, or that claim no longer holds the job; finish.sql decides. A row that another
-- transaction has locked ends the statement after lock_timeout.
with emptied as (
    delete from pitwheel.hold
    where hold.id = any($4::bigint[])
)
delete from pitwheel.job
using unnest($1::bigint[], $2::bigint[], $3::tid[]) as done(id, fence, tid)
where job.ctid = any($3::tid[])
  and job.ctid = done.tid
  and job.id + 0 = done.id
  and job.fence = done.fence
  and job.holder is not null
returning job.id, job.fence, true as written
