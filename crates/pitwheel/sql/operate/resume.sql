-- resume.sql: the queue (`*`: the pause of all queues) is claimed from again. Zero rows: it was not paused.
with resumed as (
    update pitwheel.queue
    set paused_at = null
    where queue.name = $1
      and queue.paused_at is not null
    returning queue.name
)
insert into pitwheel.audit (actor, action, subject)
select $2, 'queue.resume', resumed.name
from resumed
returning audit.subject
