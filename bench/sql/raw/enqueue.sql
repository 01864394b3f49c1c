-- enqueue.sql: one job for each payload of $2, on queue $1, due at once.
insert into raw_bench.job (queue, priority, run_at, kind, payload)
select $1::text, 0, clock_timestamp(), 'mail', payload::json
from unnest($2::text[]) as batch (payload)
