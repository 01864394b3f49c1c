-- look_back.sql: for each level, the first job that waits between its floor and its bound, where claims no longer read.
-- Also the clock and the transaction ids, from which the caller computes below which position no job can appear (cursor.rs). The
-- id is a real one of this transaction: the next id of a snapshot can be one that an open transaction has already. And when the server
-- started: after a failover that lost claims, jobs wait again where they were.
-- Suspects are found in job_suspect, which has only them; the conditions with `is true` cannot be used to read job_due instead.
-- Reads job_due from the floor, for the priorities that jobs have had. One row per level; nulls: no job waits there, or the level was
-- not read (`is_read`).
-- The kinds are a hashed subplan: an array of 1,000 would be searched from its start for every row.
select level.n::int as level, behind.run_at, behind.id,
    level.priority in (select used_priority.priority from pitwheel.used_priority) as is_read,
    clock_timestamp() as seen_at,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint as oldest_xid,
    pg_current_xact_id()::text::bigint as own_xid,
    pg_postmaster_start_time() as server_started_at,
    exists (
        select from pitwheel.job
        where job.crashes >= 2
          and (job.run_at <= now()) is true
          and (job.queue = any($1::text[])) is true
          and job.kind = any($7::text[])
          and job.holder is null
          and not exists (
              select from pitwheel.queue
              where queue.name in (job.queue, '*') and queue.paused_at is not null
          )
    ) as suspects
from unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::bigint[], $5::timestamptz[], $6::bigint[])
    with ordinality as level(queue, priority, floor_at, floor_id, bound_at, bound_id, n)
left join lateral (
    select job.run_at, job.id
    from pitwheel.job
    where level.priority in (select used_priority.priority from pitwheel.used_priority)
      and job.queue = level.queue
      and job.priority = level.priority
      and (job.run_at, +job.id) > (level.floor_at, level.floor_id)
      and (job.run_at, +job.id) <= (level.bound_at, level.bound_id)
      and job.holder is null
      and job.crashes < 2
      and (job.kind in (select unnest($7::text[]))) is true
    order by job.run_at, +job.id
    limit 1
) as behind on true
order by level.n
