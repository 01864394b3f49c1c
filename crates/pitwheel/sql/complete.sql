-- complete.sql: the claimed jobs are done and leave no history; holds that were emptied before go too.
-- Rows not returned: that claim no longer holds the job (swept, claimed again, or settled before).
with emptied as (
    delete from pitwheel.hold
    where hold.id = any($3::bigint[])
)
delete from pitwheel.job
using unnest($1::bigint[], $2::bigint[]) as done(id, fence)
where job.id = done.id
  and job.fence = done.fence
  and job.holder is not null
returning job.id
