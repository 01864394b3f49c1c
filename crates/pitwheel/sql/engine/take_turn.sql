-- take_turn.sql: the worker may stop claiming for so long, to run a suspect alone. For no time at all: it gives up its turn.
-- A worker that is quiet or was declared dead gets no suspect, so it gets no turn, and loses the one that it has. No turn is longer than
-- 300 s (suspects.rs): one that is was taken before the clock was set back.
-- Zero rows: another worker has the turn, or this one may have none.
update pitwheel.alone_turn
set worker = $1,
    until = clock_timestamp() + $2::bigint * interval '1 millisecond'
where (
        alone_turn.worker = $1
        or alone_turn.until < clock_timestamp()
        or alone_turn.until > clock_timestamp() + interval '300 seconds'
        or not exists (
            select from pitwheel.worker
            where worker.id = alone_turn.worker and worker.dead_at is null and worker.quiet_at is null
        )
    )
  and exists (select from pitwheel.worker where worker.id = $1 and worker.dead_at is null and worker.quiet_at is null)
returning alone_turn.worker
