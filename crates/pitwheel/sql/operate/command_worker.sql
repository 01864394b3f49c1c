-- command_worker.sql: a worker becomes quiet (it gets no more jobs), drains (and then ends), or resumes.
-- A draining worker stays draining. Zero rows: the worker is not running, or is already draining.
with target as materialized (
    select worker.id, worker.name, worker.quiet_at
    from pitwheel.worker
    where worker.id = $1
      and worker.dead_at is null
      and worker.drain_at is null
    for no key update
),
ordered as (
    update pitwheel.worker
    set quiet_at = case when $2 = 'resume' then null else coalesce(worker.quiet_at, clock_timestamp()) end,
        drain_at = case when $2 = 'drain' then clock_timestamp() end
    from target
    where worker.id = target.id
      and ($2 = 'drain' or ($2 = 'quiet') = (target.quiet_at is null))
    returning worker.id, worker.name
),
audited as (
    insert into pitwheel.audit (actor, action, subject)
    select $3, 'worker.' || $2, ordered.id || ' ' || ordered.name
    from ordered
)
select target.id
from target
