-- take_turn.sql: the worker may stop claiming for so long, to run a suspect alone. Zero rows: another worker has the turn.
update pitwheel.alone_turn
set worker = $1,
    until = clock_timestamp() + $2::bigint * interval '1 millisecond'
where alone_turn.worker = $1
   or alone_turn.until < clock_timestamp()
returning alone_turn.worker
