-- complete.sql: the claimed jobs are done and leave no history. Holds that were emptied before are deleted.
-- Finds each row by the ctid it had when it was claimed: one page read instead of an index lookup. The ctids are an array and the
-- claims a hashed subplan, because a join could be planned as a scan of job_pkey, or compare every row with every ctid.
-- Returns the ids of the jobs that it deleted, as one array: a row for each costs both sides more. The others: the row has moved since,
-- it is a run of a recurring job or a step, or that claim no longer holds the job; finish.sql decides. A row that another transaction
-- has locked ends the statement after lock_timeout.
with emptied as (
    delete from pitwheel.hold
    where hold.ctid = any (array(
        select hold.ctid from pitwheel.hold where hold.id = any($5::bigint[]) for update skip locked
    ))
),
gone as (
    delete from pitwheel.job
    where job.ctid = any($4::tid[])
      and ((job.id, job.fence, job.holder) in (
          select claim.id, claim.fence, claim.holder
          from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as claim(id, fence, holder)
      )) is true
      and job.recurring is null
      and job.pipeline is null
    returning job.id
)
select array_agg(gone.id) as ids
from gone
