-- kinds.sql: kinds that have settings, and kinds that running workers handle, at most 1,000 of them: first those that have settings, then
-- those that most workers handle.
select listed.name, listed.redacted, listed.workers
from (
    select known.name, coalesce(kind.redacted, false) as redacted, known.workers
    from (
        select named.name, count(named.worker) as workers
        from (
            select kind.name, null::bigint as worker from pitwheel.kind
            union all
            select run.name, worker.id
            from pitwheel.worker
            cross join unnest(worker.kinds) as run(name)
            where worker.dead_at is null
        ) as named
        group by named.name
    ) as known
    left join pitwheel.kind on kind.name = known.name
    order by kind.name is null, known.workers desc, known.name
    limit 1000
) as listed
order by listed.name
