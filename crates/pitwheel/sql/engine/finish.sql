-- finish.sql: the claimed jobs are done, dead or cancelled; their followers are enqueued. With a state a job moves to the
-- history, without one it leaves no row there. Holds that were emptied before are deleted.
-- The pipeline of a step goes on; `due` is the queues in which it has a new job, and `lanes` the lanes that its new jobs entered, which
-- are to be promoted after this. A step always moves to the history. Its followers that have a step's name become steps of the pipeline.
-- A row that another transaction has locked, or changed while this ran, is not waited for: it is returned with `written` false,
-- and nothing was changed. Likewise a step whose pipeline is locked (pipelines are locked before jobs), a row with
-- `if_cancelled`, if no cancel was requested, and a run of a recurring job, which finish_runs.sql finishes.
-- A holder of 0 is not known, and then not compared.
-- Rows not returned: that claim no longer holds the job (swept, claimed again, or settled before), and none of its followers
-- exist. A follower whose key a live job of its kind has is not added. The sort makes every delete come before the first
-- insert, so a follower may have the key of the job that it follows. Followers are inserted in the order of kind and key, and get
-- their ids in the order given, which is their order in a lane. Uses job_pkey, job_key and pipeline_pkey.
-- Each job is found by one probe of job_pkey: with `limit 1` the planner cannot join the batch with a scan of the whole index.
with emptied as (
    delete from pitwheel.hold
    where hold.ctid = any (array(
        select hold.ctid from pitwheel.hold where hold.id = any($6::bigint[]) for update skip locked
    ))
),
ended as materialized (
    select ended.id, ended.fence, nullif(ended.holder, 0) as holder, ended.state, ended.error, ended.result,
        ended.if_cancelled
    from unnest($1::bigint[], $2::bigint[], $20::bigint[], $3::text[], $4::text[], $5::text[], $19::bool[])
        as ended(id, fence, holder, state, error, result, if_cancelled)
),
steps as materialized (
    select pipeline.id
    from pitwheel.pipeline
    where pipeline.id = any (array(
        select job.pipeline
        from ended
        cross join lateral (
            select job.pipeline
            from pitwheel.job
            where job.id = ended.id
            limit 1
        ) as job
        where job.pipeline is not null
    ))
    order by pipeline.id
    for no key update skip locked
),
free as materialized (
    select job.tid
    from ended
    cross join lateral (
        select job.ctid as tid
        from pitwheel.job
        where job.id = ended.id
          and job.fence = ended.fence
          and job.holder = coalesce(ended.holder, job.holder)
          and job.recurring is null
          and (
              job.pipeline is null
              or job.pipeline = any (array(select steps.id from steps))
              or (select pipeline.id from pitwheel.pipeline where pipeline.id = job.pipeline limit 1) is null
          )
          and (not ended.if_cancelled or job.cancel_requested_at is not null)
        limit 1
        for update skip locked
    ) as job
),
gone as (
    delete from pitwheel.job
    where job.ctid = any (array(select free.tid from free))
    returning job.id, job.run_at, job.enqueued_at, job.fence, job.attempt, job.max_attempts, job.priority, job.crashes,
        job.queue, job.kind, job.payload, job.holder, job.claimed_at, job.timeout_ms, job.key, job.metadata, job.note,
        job.errors, job.lane, job.lane_pass, job.pipeline, job.step
),
kept as (
    insert into pitwheel.job_history (
        id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind, payload,
        worker, claimed_at, timeout_ms, key, metadata, note, errors, result, lane, lane_pass,
        pipeline, step
    )
    select gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
        gone.priority, gone.crashes, coalesce(ended.state, 'done'), gone.queue, gone.kind, gone.payload, gone.holder,
        gone.claimed_at, gone.timeout_ms, gone.key, gone.metadata, gone.note, pitwheel.with_error(gone.errors, ended.error),
        ended.result::json, gone.lane, gone.lane_pass, gone.pipeline, gone.step
    from gone
    join ended
        on ended.id = gone.id and ended.fence = gone.fence and gone.holder = coalesce(ended.holder, gone.holder)
    where ended.state is not null
       or gone.pipeline is not null
),
given as materialized (
    select nextval('pitwheel.job_id_seq') as id, follower.kind, follower.payload, follower.queue, follower.delay_ms,
        follower.run_at_us, follower.priority, follower.max_attempts, follower.timeout_ms, follower.metadata, follower.key,
        follower.lane, follower.lane_pass, follower.n
    from (
        select follower.kind, follower.payload, follower.queue, follower.delay_ms, follower.run_at_us, follower.priority,
            follower.max_attempts, follower.timeout_ms, follower.metadata, follower.key, follower.lane, follower.lane_pass,
            follower.n
        from gone
        join unnest($7::bigint[], $8::bigint[], $9::text[], $10::text[], $11::text[], $12::bigint[], $13::bigint[],
            $14::smallint[], $15::int[], $16::bigint[], $17::text[], $18::text[], $21::bigint[], $22::text[], $23::bool[],
            $24::text[]) with ordinality
            as follower(job_id, fence, kind, payload, queue, delay_ms, run_at_us, priority, max_attempts, timeout_ms,
                metadata, key, holder, lane, lane_pass, step, n)
            on follower.job_id = gone.id and follower.fence = gone.fence
            and gone.holder = coalesce(nullif(follower.holder, 0), gone.holder)
        where gone.pipeline is null
           or follower.step is null
        order by follower.n
    ) as follower
),
followers as (
    insert into pitwheel.job (
        id, kind, payload, queue, run_at, enqueued_at, priority, max_attempts, timeout_ms, metadata, key, lane,
        lane_pass
    )
    select follower.id, follower.kind, follower.payload::json, follower.queue,
        greatest(
            timestamptz 'epoch' + follower.run_at_us * interval '1 microsecond',
            clock_timestamp() + follower.delay_ms * interval '1 millisecond'
        ),
        clock_timestamp(), follower.priority, follower.max_attempts, follower.timeout_ms, follower.metadata::json,
        follower.key, follower.lane, nullif(follower.lane_pass, false)
    from given as follower
    order by follower.kind, follower.key, follower.n
    on conflict (kind, key) where key is not null do nothing
),
added as materialized (
    select pitwheel.add_step(
        gone.pipeline, gone.step, follower.step, follower.kind, follower.payload::json, follower.queue,
        timestamptz 'epoch' + follower.run_at_us * interval '1 microsecond', follower.delay_ms, follower.priority,
        follower.max_attempts, follower.timeout_ms, follower.metadata::json, follower.lane, nullif(follower.lane_pass, false)
    )
    from gone
    join unnest($7::bigint[], $8::bigint[], $9::text[], $10::text[], $11::text[], $12::bigint[], $13::bigint[],
        $14::smallint[], $15::int[], $16::bigint[], $17::text[], $21::bigint[], $22::text[], $23::bool[],
        $24::text[])
        as follower(job_id, fence, kind, payload, queue, delay_ms, run_at_us, priority, max_attempts, timeout_ms,
            metadata, holder, lane, lane_pass, step)
        on follower.job_id = gone.id and follower.fence = gone.fence
        and gone.holder = coalesce(nullif(follower.holder, 0), gone.holder)
    where gone.pipeline is not null
      and follower.step is not null
),
advanced as materialized (
    select gone.id, pitwheel.end_step(
        gone.pipeline, gone.step, gone.id, coalesce(ended.state, 'done'), ended.result::json
    ) as due
    from gone
    join ended
        on ended.id = gone.id and ended.fence = gone.fence and gone.holder = coalesce(ended.holder, gone.holder)
    where gone.pipeline is not null
      and (select count(*) from added) >= 0
),
entered as materialized (
    select pitwheel.entered_lanes() as lanes
    where (select count(*) from advanced) > 0
)
select gone.id, gone.fence, gone.holder, true as written, advanced.due, entered.lanes
from gone
left join advanced on advanced.id = gone.id
left join entered on gone.id = (select min(advanced.id) from advanced)
union all
select job.id, job.fence, job.holder, false, null, null
from ended
cross join lateral (
    select job.id, job.fence, job.holder
    from pitwheel.job
    where job.id = ended.id
      and job.fence = ended.fence
      and job.holder = coalesce(ended.holder, job.holder)
    limit 1
) as job
where not exists (select from gone where gone.id = ended.id)
