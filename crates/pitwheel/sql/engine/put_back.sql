-- put_back.sql: the claimed jobs wait again, for a delay from now: retried, snoozed, released, or taken from a dead worker.
-- `uncharged` does not count the attempt, `crashed` counts a crash.
-- A job of a lane that lets others pass, and has to wait, is blocked again; the lane is looked at after the commit. Older versions have
-- stored jobs that let others pass and are in no lane.
-- A holder of 0 is not known, and then not compared.
-- Rows not returned: the claim no longer holds the job, a cancel was requested, it is a run of a recurring job, or another
-- transaction has locked the row, which is not waited for. The caller finishes them as cancelled, and finish.sql tells these apart.
-- Each job is found by one probe of job_pkey: with `limit 1` the planner cannot join the batch with a scan of the whole index.
-- The update adds 0 to the id, so that no plan joins by a scan of job_pkey: the rows are those of the ctids.
with back as materialized (
    select back.id, back.fence, nullif(back.holder, 0) as holder, back.delay_ms, back.uncharged, back.crashed, back.error
    from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bool[], $6::bool[], $7::text[])
        as back(id, fence, holder, delay_ms, uncharged, crashed, error)
),
free as materialized (
    select job.tid
    from back
    cross join lateral (
        select job.ctid as tid
        from pitwheel.job
        where job.id = back.id
          and job.fence = back.fence
          and job.holder = coalesce(back.holder, job.holder)
          and job.cancel_requested_at is null
          and job.recurring is null
        limit 1
        for no key update skip locked
    ) as job
),
waiting as (
    update pitwheel.job
    set holder = null,
        claimed_at = null,
        progress = null,
        run_at = case when job.lane_pass and job.lane is not null and back.delay_ms > 0 then 'infinity'
            else clock_timestamp() + back.delay_ms * interval '1 millisecond' end,
        lane_at = case when job.lane_pass and job.lane is not null and back.delay_ms > 0
            then clock_timestamp() + back.delay_ms * interval '1 millisecond' end,
        lane_former = case when (job.lane_pass and back.delay_ms > 0) is not true then job.lane_former end,
        attempt = job.attempt - back.uncharged::int,
        crashes = job.crashes + back.crashed::int,
        errors = pitwheel.with_error(job.errors, back.error)
    from back
    where job.ctid = any (array(select free.tid from free))
      and job.id + 0 = back.id
      and job.fence = back.fence
      and job.holder = coalesce(back.holder, job.holder)
    returning job.id, job.fence, coalesce(back.holder, 0) as holder, job.lane, job.run_at = 'infinity' as passes
)
select waiting.id, waiting.fence, waiting.holder, true as written,
    case when waiting.passes then pitwheel.pass_lane(waiting.lane, waiting.id) end
from waiting
