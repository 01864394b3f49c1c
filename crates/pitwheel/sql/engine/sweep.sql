-- sweep.sql: records a sweep, and declares the workers dead whose lease has expired. One statement, so that a sweep that is
-- interrupted has done nothing.
-- If no sweep happened for longer than $2 (the database was not reachable, the processes were paused, the clock jumped), workers
-- could not renew either: then every lease moves on by the length of that gap, and no worker is declared dead. One whose lease had
-- expired before the gap is declared dead by the next sweep. A lease that ends later than its length from now (the clock jumped
-- back) is cut.
-- A worker that another transaction has locked is not waited for. It could not renew either, so it is noted, and the first sweep that
-- finds it free gives it a whole lease. To see this in time, sweeps look at every worker that has not renewed for half of its lease.
-- Zero rows: another node swept within $1. Uses worker_alive: what is dead costs nothing.
with tick as materialized (
    select clock_timestamp() - sweep_tick.ticked_at as gap, sweep_tick.locked,
        clock_timestamp() - sweep_tick.ticked_at > $2::bigint * interval '1 millisecond' as leases_extended
    from pitwheel.sweep_tick
    where clock_timestamp() - sweep_tick.ticked_at > $1::bigint * interval '1 millisecond'
       or sweep_tick.ticked_at > clock_timestamp()
    for no key update skip locked
),
late as materialized (
    select worker.id
    from tick
    cross join pitwheel.worker
    where worker.dead_at is null
      and (
          tick.leases_extended
          or worker.lease_until < clock_timestamp() + worker.lease / 2
          or worker.lease_until > clock_timestamp() + worker.lease
          or worker.id = any (tick.locked)
      )
),
free as materialized (
    select worker.id
    from pitwheel.worker
    where worker.id = any (array(select late.id from late))
      and worker.dead_at is null
    for no key update skip locked
),
ticked as (
    update pitwheel.sweep_tick
    set ticked_at = clock_timestamp(), locked = array(select late.id from late except select free.id from free)
    from tick
),
leased as (
    update pitwheel.worker
    set lease_until = case
        when worker.id = any (tick.locked) then clock_timestamp() + worker.lease
        else least(worker.lease_until + greatest(tick.gap, interval '0'), clock_timestamp() + worker.lease)
    end
    from tick
    where worker.id = any (array(select free.id from free))
      and (
          tick.leases_extended
          or worker.lease_until > clock_timestamp() + worker.lease
          or worker.id = any (tick.locked)
      )
),
dead as (
    update pitwheel.worker
    set dead_at = clock_timestamp()
    from tick
    where worker.id = any (array(select free.id from free))
      and not tick.leases_extended
      and worker.lease_until < clock_timestamp()
      and worker.id <> all (tick.locked)
    returning worker.id, worker.name
)
select tick.leases_extended, array(select dead.name from dead) as dead
from tick
