-- put_back.sql: the claimed jobs wait again, for a delay from now: retried, snoozed, released, or taken from a dead worker.
-- `uncharged` does not count the attempt, `crashed` counts a crash.
-- Rows not returned: the claim no longer holds the job, or a cancel was requested. The caller finishes them as cancelled, which
-- succeeds only in the second case.
update pitwheel.job
set holder = null,
    claimed_at = null,
    progress = null,
    run_at = clock_timestamp() + back.delay_ms * interval '1 millisecond',
    attempt = job.attempt - back.uncharged::int,
    crashes = job.crashes + back.crashed::int,
    errors = pitwheel.with_error(job.errors, back.error)
from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bool[], $5::bool[], $6::text[])
    as back(id, fence, delay_ms, uncharged, crashed, error)
where job.id = back.id
  and job.fence = back.fence
  and job.holder is not null
  and job.cancel_requested_at is null
returning job.id, job.fence
