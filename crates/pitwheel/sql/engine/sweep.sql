-- sweep.sql: records a sweep, and declares the workers dead whose lease has expired. One statement, so that a sweep that is
-- interrupted has done nothing.
-- If no sweep happened for longer than $2 (the database was not reachable, the processes were paused, the clock jumped), workers
-- could not renew either: then every lease moves on by the length of that gap, and no worker is declared dead. One whose lease had
-- expired before the gap is declared dead by the next sweep. A lease that ends later than its length from now (the clock jumped
-- back) is cut.
-- Zero rows: another node swept within $1. Uses worker_alive: what is dead costs nothing.
with tick as materialized (
    select clock_timestamp() - sweep_tick.ticked_at as gap,
        clock_timestamp() - sweep_tick.ticked_at > $2::bigint * interval '1 millisecond' as leases_extended
    from pitwheel.sweep_tick
    where clock_timestamp() - sweep_tick.ticked_at > $1::bigint * interval '1 millisecond'
       or sweep_tick.ticked_at > clock_timestamp()
    for no key update skip locked
),
ticked as (
    update pitwheel.sweep_tick
    set ticked_at = clock_timestamp()
    from tick
),
-- By id, like a heartbeat: otherwise the two can wait for each other.
changed as materialized (
    select worker.id
    from tick
    cross join pitwheel.worker
    where worker.dead_at is null
      and (
          tick.leases_extended
          or worker.lease_until < clock_timestamp()
          or worker.lease_until > clock_timestamp() + worker.lease
      )
    order by worker.id
    for no key update of worker
),
leased as (
    update pitwheel.worker
    set lease_until = least(worker.lease_until + greatest(tick.gap, interval '0'), clock_timestamp() + worker.lease)
    from tick
    where worker.id = any (array(select changed.id from changed))
      and (tick.leases_extended or worker.lease_until > clock_timestamp() + worker.lease)
),
dead as (
    update pitwheel.worker
    set dead_at = clock_timestamp()
    from tick
    where worker.id = any (array(select changed.id from changed))
      and not tick.leases_extended
      and worker.lease_until < clock_timestamp()
    returning worker.id, worker.name
)
select tick.leases_extended, array(select dead.name from dead) as dead
from tick
