-- pause.sql: nothing more is claimed from this queue (`*`: from any queue) by a claim that starts after this commits.
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
