-- drop_holds.sql: deletes these holds, as far as none of their jobs is held any more.
-- A hold stays while one of its jobs is held, for instance because a settle of it is in progress.
delete from pitwheel.hold
where hold.id = any($1::bigint[])
  and not exists (
      select from pitwheel.job
      where job.id = any(hold.job_ids) and job.holder = hold.worker
  )
