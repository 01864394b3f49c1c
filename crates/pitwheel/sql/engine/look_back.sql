-- look_back.sql: for each level, the first job that waits between its floor and its bound, where claims no longer read.
-- Also the clock and the transaction ids, from which the caller computes below which position no job can appear (cursor.rs).
-- Reads job_due from the floor; changes nothing. One row per level; nulls: no job waits there.
select level.n::int as level, behind.run_at, behind.id, clock_timestamp() as seen_at,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint as oldest_xid,
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint as next_xid,
    exists (
        select from pitwheel.job
        where job.crashes >= 2 and job.run_at <= now() and job.holder is null
          and job.queue = any($1::text[]) and job.kind = any($7::text[])
    ) as suspects
from unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::bigint[], $5::timestamptz[], $6::bigint[])
    with ordinality as level(queue, priority, floor_at, floor_id, bound_at, bound_id, n)
left join lateral (
    select job.run_at, job.id
    from pitwheel.job
    where job.queue = level.queue
      and job.priority = level.priority
      and (job.run_at, job.id) > (level.floor_at, level.floor_id)
      and (job.run_at, job.id) <= (level.bound_at, level.bound_id)
      and job.holder is null
      and job.crashes < 2
      and job.kind = any($7::text[])
    order by job.run_at, job.id
    limit 1
) as behind on true
order by level.n
