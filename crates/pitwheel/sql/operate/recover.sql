-- recover.sql: the running job $1, whose worker has not renewed its lease for $2 milliseconds, waits again. See pitwheel.recover.
-- Zero rows: there is no such job.
select recovered.outcome, recovered.queue, recovered.lane, recovered.silent_seconds
from pitwheel.recover($1::bigint, $2::bigint * interval '1 millisecond', $3::text) as recovered
