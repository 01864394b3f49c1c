-- Rows that older versions accepted, and limits that the library has and the SQL functions had not.
-- The functions below were repaired in 0019, but not the rows: they failed the ending of a job later, again at each attempt.

-- start_steps: as before, for steps that were stored with a delay or a time beyond the limits of job/limits.rs.
create or replace function pitwheel.start_steps(pipeline_id bigint, names text[]) returns text[]
language plpgsql
as $$
declare
    due text[];
begin
    with ready as (
        update pitwheel.step
        set state = 'live', job_id = nextval('pitwheel.job_id_seq')
        where step.pipeline = start_steps.pipeline_id
          and step.name = any (start_steps.names)
          and step.state = 'waiting'
          and step.waiting <= 0
        returning step.name, step.job_id, step.kind, step.payload, step.queue, step.run_at, step.delay_ms, step.priority,
            step.max_attempts, step.timeout_ms, step.metadata, step.lane, step.lane_pass
    ),
    started as (
        insert into pitwheel.job (
            id, pipeline, step, kind, payload, queue, run_at, enqueued_at, priority, max_attempts, timeout_ms, metadata, lane,
            lane_pass
        )
        select ready.job_id, start_steps.pipeline_id, ready.name, ready.kind, ready.payload, ready.queue,
            greatest(
                case when ready.run_at is not null then least(ready.run_at, clock_timestamp() + interval '36600 days') end,
                clock_timestamp() + least(ready.delay_ms, 3162240000000) * interval '1 millisecond'
            ), clock_timestamp(),
            ready.priority, ready.max_attempts, ready.timeout_ms, ready.metadata, ready.lane, ready.lane_pass
        from ready
        returning job.queue, job.run_at
    )
    select array_agg(distinct started.queue) filter (where started.run_at <= clock_timestamp()) into due
    from started;
    return due;
end
$$;

-- A job without a lane whose time is infinite is taken for a blocked one, and cannot be rescheduled.
update pitwheel.job set run_at = clock_timestamp() + interval '36600 days' where job.run_at = 'infinity' and job.lane is null;

-- fail: as before. A job without a lane lets no others pass, whatever is stored.
create or replace function pitwheel.fail(
    job_id      bigint,
    fence       bigint,
    error       text,
    retry_after interval default null,
    holder      bigint   default null
) returns boolean
language plpgsql
as $$
declare
    run     bigint;
    claimed record;
    entry   text;
    retried timestamptz;
begin
    if fail.error is null then
        raise exception 'error is null: give a message' using errcode = '22023';
    end if;
    if fail.retry_after < interval '0' then
        raise exception 'retry_after % is negative', fail.retry_after using errcode = '22023';
    end if;
    run := pitwheel.lock_recurring_of(fail.job_id);
    select job.ctid as tid, job.attempt, job.max_attempts, job.cancel_requested_at is not null as cancelled,
        job.lane, job.lane_pass and job.lane is not null as lane_pass,
        (select worker.name from pitwheel.worker where worker.id = job.holder) as worker,
        run is null or exists (select from pitwheel.recurring where recurring.id = run and recurring.enabled) as goes_on
    into claimed
    from pitwheel.job
    where job.id >= fail.job_id
      and job.id <= fail.job_id
      and job.fence = fail.fence
      and job.holder = coalesce(fail.holder, job.holder)
    order by job.id
    limit 1
    for no key update;
    if not found then
        return false;
    end if;
    entry := jsonb_build_object(
        'attempt', claimed.attempt, 'cause', 'error', 'message', left(fail.error, 4000), 'worker', claimed.worker
    )::text;
    if claimed.cancelled or not claimed.goes_on or claimed.attempt >= claimed.max_attempts then
        return pitwheel.finish(
            fail.job_id, fail.fence, fail.holder,
            case when claimed.cancelled or not claimed.goes_on then 'cancelled' else 'dead' end, entry, null
        );
    end if;
    retried := clock_timestamp() + coalesce(
        fail.retry_after,
        random() * least(interval '2 seconds' * 2 ^ least(claimed.attempt - 1, 20), interval '1 hour')
    );
    update pitwheel.job
    set holder = null,
        claimed_at = null,
        progress = null,
        run_at = case when claimed.lane_pass and retried > clock_timestamp() then 'infinity' else retried end,
        lane_at = case when claimed.lane_pass and retried > clock_timestamp() then retried end,
        lane_former = case when claimed.lane_pass then null else job.lane_former end,
        errors = pitwheel.with_error(job.errors, entry)
    where job.ctid = claimed.tid;
    if claimed.lane_pass then
        perform pitwheel.pass_lane(claimed.lane, fail.job_id);
    end if;
    update pitwheel.recurring
    set consecutive_failures = recurring.consecutive_failures + 1,
        last_error = left(fail.error, 4000),
        next_run_at = retried,
        reason = 'it failed'
    where recurring.id = run;
    return true;
end
$$;
