-- pause.sql: nothing more is claimed from this queue (`*`: from any queue) by a claim that starts after this commits.
insert into pitwheel.queue (name, paused_at)
values ($1, clock_timestamp())
on conflict (name) do update
set paused_at = coalesce(queue.paused_at, excluded.paused_at)
