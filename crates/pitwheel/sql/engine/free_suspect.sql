-- free_suspect.sql: whether a suspect is due that no transaction has locked: a worker would stop claiming for one that it cannot claim.
-- Apart from look_back.sql for the reason of first_free.sql. Uses job_suspect, as claim_alone.sql does.
-- Zero rows: all are locked, or none is due any more.
select
from pitwheel.job
where job.crashes >= 2
  and (job.run_at <= now()) is true
  and job.holder is null
  and (job.queue = any($1::text[])) is true
  and job.kind = any($2::text[])
  and not exists (
      select from pitwheel.queue
      where queue.name in (job.queue, '*') and queue.paused_at is not null
  )
limit 1
for share of job skip locked
