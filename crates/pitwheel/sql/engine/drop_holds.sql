-- drop_holds.sql: forgets the holds of dead workers from which nothing is held any more.
-- A hold stays while one of its jobs is still held, for instance because a settle of it is under way.
delete from pitwheel.hold
where hold.id = any($1::bigint[])
  and not exists (
      select from pitwheel.job
      where job.id = any(hold.job_ids) and job.holder = hold.worker
  )
