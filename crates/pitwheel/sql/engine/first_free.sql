-- first_free.sql: for each of these levels, the first job that waits between two positions and that no transaction has locked: a claim
-- would skip the others, and read all that is behind them again. Apart from look_back.sql, because claims skip what it locks until it ends,
-- and a look back may read for long.
-- Reads job_due from the first position. One row per level; nulls: all are locked, or none waits any more.
-- The kinds are a hashed subplan: an array of 1,000 would be searched from its start for every row.
select free.run_at, free.id
from unnest($1::text[], $2::smallint[], $3::timestamptz[], $4::bigint[], $5::timestamptz[], $6::bigint[])
    with ordinality as level(queue, priority, first_at, first_id, bound_at, bound_id, n)
left join lateral (
    select job.run_at, job.id
    from pitwheel.job
    where job.queue = level.queue
      and job.priority = level.priority
      and (job.run_at, +job.id) >= (level.first_at, level.first_id)
      and (job.run_at, +job.id) <= (level.bound_at, level.bound_id)
      and job.holder is null
      and job.crashes < 2
      and (job.kind in (select unnest($7::text[]))) is true
    order by job.run_at, +job.id
    limit 1
    for share skip locked
) as free on true
order by level.n
