-- order_worker.sql: a worker is told to be quiet (it is given nothing more), to drain (and then to end), or to go on.
-- One that drains goes on draining. Zero rows: no living worker has this id, or it drains already.
with ordered as (
    update pitwheel.worker
    set quiet_at = case when $2 = 'resume' then null else coalesce(worker.quiet_at, clock_timestamp()) end,
        drain_at = case when $2 = 'drain' then clock_timestamp() end
    where worker.id = $1
      and worker.dead_at is null
      and worker.drain_at is null
    returning worker.id, worker.name
)
insert into pitwheel.audit (actor, action, subject)
select $3, 'worker.' || $2, ordered.id || ' ' || ordered.name
from ordered
returning audit.subject
