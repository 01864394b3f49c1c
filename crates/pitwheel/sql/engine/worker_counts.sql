-- worker_counts.sql: the running workers, counted by transport and state.
select worker.transport,
    case when worker.drain_at is not null then 'draining' when worker.quiet_at is not null then 'quiet' else 'alive' end
        as state,
    count(*) as workers, coalesce(sum(worker.slots), 0) as slots,
    coalesce(max(extract(epoch from now() - (worker.lease_until - worker.lease))), 0)::float8 as silent_seconds
from pitwheel.worker
where worker.dead_at is null
group by 1, 2
