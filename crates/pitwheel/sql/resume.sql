-- resume.sql: the queue (`*`: the pause of all) is claimed from again. Zero rows: it was not paused.
update pitwheel.queue
set paused_at = null
where queue.name = $1
  and queue.paused_at is not null
returning queue.name
