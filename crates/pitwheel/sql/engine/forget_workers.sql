-- forget_workers.sql: deletes up to 1,000 workers that have been dead for a day, or for ten minutes if 10,000 others died later, and
-- that hold nothing; returns how many. One that another transaction has locked is skipped. Uses worker_dead and hold_worker.
with many as materialized (
    select worker.dead_at
    from pitwheel.worker
    where worker.dead_at is not null
    order by worker.dead_at desc
    offset 10000
    limit 1
),
forgotten as (
    delete from pitwheel.worker
    where worker.id = any (array(
        select worker.id
        from pitwheel.worker
        where worker.dead_at < greatest(
                now() - interval '1 day',
                least(now() - interval '10 minutes', coalesce((select many.dead_at from many), '-infinity'))
            )
          and not exists (select from pitwheel.hold where hold.worker = worker.id)
        order by worker.dead_at
        limit 1000
        for update skip locked
    ))
    returning worker.id
)
select count(*) from forgotten
