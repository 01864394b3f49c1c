-- claim.sql: claim up to $2 jobs of queue $1. Each batch has a queue of its own, so that no claim scans the dead rows
-- of another and all drivers do the same work.
with due as materialized (
    select job.ctid
    from raw_bench.job
    where queue = $1
      and priority = 0
      and run_at <= now()
      and holder is null
    order by run_at, id
    limit $2
    for no key update skip locked
)
update raw_bench.job
set holder = 1, fence = fence + 1
where ctid = any (array(select due.ctid from due))
returning id, payload
