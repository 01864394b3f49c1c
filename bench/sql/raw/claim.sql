-- claim.sql: claim up to $4 due jobs of queue $1 that come after ($2, $3).
-- Uses the index job_due. The found rows are reached by `ctid = any(array(…))`, one Tid Scan over a sorted list: a join with the
-- CTE costs a nested loop, and under a generic plan a sequential scan. Rows come back in the order of the heap.
-- Zero rows: nothing is due.
with due as materialized (
    select job.ctid
    from raw_bench.job
    where queue = $1
      and priority = 0
      and (run_at, id) > ($2, $3)
      and run_at <= now()
      and holder is null
    order by run_at, id
    limit $4
    for no key update skip locked
)
update raw_bench.job
set holder = 1, fence = fence + 1
where ctid = any (array(select due.ctid from due))
returning id, run_at, payload
