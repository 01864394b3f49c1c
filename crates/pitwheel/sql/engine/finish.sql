-- finish.sql: the claimed jobs are done, dead or cancelled; their followers are enqueued. With a state a job moves to the
-- history, without one it leaves no row there. Holds that were emptied before are deleted.
-- A row that another transaction has locked, or changed while this ran, is not waited for: it is returned with `written` false,
-- and nothing was changed. Likewise a row with `if_cancelled`, if no cancel was requested, and a run of a recurring job, which
-- finish_runs.sql finishes.
-- A holder of 0 is not known, and then not compared.
-- Rows not returned: that claim no longer holds the job (swept, claimed again, or settled before), and none of its followers
-- exist. A follower whose key a live job of its kind has is not added. The sort makes every delete come before the first
-- insert, so a follower may have the key of the job that it follows. Uses job_pkey and job_key.
-- A job is found by a range of one id, in the order of ids: only job_pkey has that order. With `=` a plan could read all of
-- job_due, which ends with the id, once the table was analyzed without rows.
with emptied as (
    delete from pitwheel.hold
    where hold.id = any($6::bigint[])
),
ended as materialized (
    select ended.id, ended.fence, nullif(ended.holder, 0) as holder, ended.state, ended.error, ended.result,
        ended.if_cancelled
    from unnest($1::bigint[], $2::bigint[], $20::bigint[], $3::text[], $4::text[], $5::text[], $19::bool[])
        as ended(id, fence, holder, state, error, result, if_cancelled)
),
free as materialized (
    select job.tid, job.id
    from ended
    cross join lateral (
        select job.ctid as tid, job.id
        from pitwheel.job
        where job.id >= ended.id
          and job.id <= ended.id
          and job.fence = ended.fence
          and job.holder = coalesce(ended.holder, job.holder)
          and job.recurring is null
          and (not ended.if_cancelled or job.cancel_requested_at is not null)
        order by job.id
        limit 1
        for update skip locked
    ) as job
),
gone as (
    delete from pitwheel.job
    where job.ctid = any (array(select free.tid from free))
    returning job.id, job.run_at, job.enqueued_at, job.fence, job.attempt, job.max_attempts, job.priority, job.crashes,
        job.queue, job.kind, job.payload, job.holder, job.claimed_at, job.timeout_ms, job.key, job.metadata, job.note,
        job.errors, job.lane, job.lane_pass
),
kept as (
    insert into pitwheel.job_history (
        id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind, payload,
        worker, claimed_at, timeout_ms, key, metadata, note, errors, result, lane, lane_pass
    )
    select gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
        gone.priority, gone.crashes, ended.state, gone.queue, gone.kind, gone.payload, gone.holder, gone.claimed_at,
        gone.timeout_ms, gone.key, gone.metadata, gone.note, pitwheel.with_error(gone.errors, ended.error),
        ended.result::json, gone.lane, gone.lane_pass
    from gone
    join ended
        on ended.id = gone.id and ended.fence = gone.fence and gone.holder = coalesce(ended.holder, gone.holder)
    where ended.state is not null
),
followers as (
    insert into pitwheel.job (
        kind, payload, queue, run_at, enqueued_at, priority, max_attempts, timeout_ms, metadata, key, lane,
        lane_pass
    )
    select follower.kind, follower.payload::json, follower.queue,
        greatest(
            timestamptz 'epoch' + follower.run_at_us * interval '1 microsecond',
            clock_timestamp() + follower.delay_ms * interval '1 millisecond'
        ),
        clock_timestamp(), follower.priority, follower.max_attempts, follower.timeout_ms, follower.metadata::json,
        follower.key, follower.lane, nullif(follower.lane_pass, false)
    from gone
    join unnest($7::bigint[], $8::bigint[], $9::text[], $10::text[], $11::text[], $12::bigint[], $13::bigint[],
        $14::smallint[], $15::int[], $16::bigint[], $17::text[], $18::text[], $21::bigint[], $22::text[], $23::bool[])
        with ordinality
        as follower(job_id, fence, kind, payload, queue, delay_ms, run_at_us, priority, max_attempts, timeout_ms,
            metadata, key, holder, lane, lane_pass, n)
        on follower.job_id = gone.id and follower.fence = gone.fence
        and gone.holder = coalesce(nullif(follower.holder, 0), gone.holder)
    order by follower.kind, follower.key, follower.n
    on conflict (kind, key) where key is not null do nothing
)
select gone.id, gone.fence, gone.holder, true as written
from gone
union all
select job.id, job.fence, job.holder, false
from ended
cross join lateral (
    select job.id, job.fence, job.holder
    from pitwheel.job
    where job.id >= ended.id
      and job.id <= ended.id
      and job.fence = ended.fence
      and job.holder = coalesce(ended.holder, job.holder)
    order by job.id
    limit 1
) as job
where not exists (select from gone where gone.id = ended.id)
