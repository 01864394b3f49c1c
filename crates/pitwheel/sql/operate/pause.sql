-- pause.sql: no claim that starts after this commits takes a job from this queue (`*`: from any queue).
with paused as (
    insert into pitwheel.queue (name, paused_at)
    values ($1, clock_timestamp())
    on conflict (name) do update
    set paused_at = excluded.paused_at
    where queue.paused_at is null
    returning queue.name
)
insert into pitwheel.audit (actor, action, subject)
select $2, 'queue.pause', paused.name
from paused
