-- promote_checked.sql: promotes lanes that an enqueue or a settle asked to look at, of up to $2 rows from the transaction $1 on.
-- Returns the queues of the new heads, how many rows it found, and the transaction from which to read the next time: the oldest one
-- that is open now, unless rows are left. Below it no row appears any more, so dead rows are not read again. The snapshot of this statement is older than
-- those of the function.
-- Uses the primary key of lane_check, job_lane and job_pkey. Always one row.
select promoted.queues,
    case when promoted.complete then pg_snapshot_xmin(pg_current_snapshot())::text else $1::text end as first,
    promoted.checks
from pitwheel.promote_checked($1::text::xid8, $2::int) as promoted
