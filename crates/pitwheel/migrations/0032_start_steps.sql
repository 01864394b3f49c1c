-- A step was written three times: when the last of its parents ended, when it became a job for that reason, and when it ended. The first two
-- are one update now.

drop function pitwheel.start_steps(bigint, text[]);

-- start_steps: these steps of a pipeline, which the caller has locked, wait for so many parents less, and become jobs if they wait for none
-- any more. Returns the queues in which one of them is due. Of steps that older versions stored with a delay or a time beyond the limits of
-- job/limits.rs, the times are cut.
create function pitwheel.start_steps(pipeline_id bigint, names text[], ended integer default 0) returns text[]
language plpgsql
as $$
declare
    due text[];
begin
    with counted as (
        update pitwheel.step
        set waiting = step.waiting - start_steps.ended,
            state = case when step.waiting <= start_steps.ended then 'live' else 'waiting' end,
            job_id = case when step.waiting <= start_steps.ended then nextval('pitwheel.job_id_seq') else step.job_id end
        where step.pipeline = start_steps.pipeline_id
          and step.name = any (start_steps.names)
          and step.state = 'waiting'
          and (step.waiting <= start_steps.ended or start_steps.ended > 0)
        returning step.name, step.state, step.job_id, step.kind, step.payload, step.queue, step.run_at, step.delay_ms,
            step.priority, step.max_attempts, step.timeout_ms, step.metadata, step.lane, step.lane_pass
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
        from counted as ready
        where ready.state = 'live'
        returning job.queue, job.run_at
    )
    select array_agg(distinct started.queue) filter (where started.run_at <= clock_timestamp()) into due
    from started;
    return due;
end
$$;
grant execute on function pitwheel.start_steps to public;

-- end_step: a live step has ended, with the job that it was: its children become jobs, or are skipped. The caller has locked the
-- pipeline. Returns the queues in which a new job is due. Nothing happens if the step is no longer this job.
create or replace function pitwheel.end_step(pipeline_id bigint, step_name text, job_id bigint, state text, result json)
returns text[]
language plpgsql
as $$
#variable_conflict use_column
declare
    below   text[];
    due     text[];
    skipped integer := 0;
begin
    update pitwheel.step
    set state = end_step.state, result = end_step.result, ended_at = clock_timestamp()
    where step.pipeline = end_step.pipeline_id
      and step.name = end_step.step_name
      and step.state = 'live'
      and step.job_id = end_step.job_id
    returning step.children into below;
    if not found then
        return null;
    end if;
    if cardinality(below) > 0 then
        if end_step.state <> 'done' and exists (
            select from pitwheel.pipeline where pipeline.id = end_step.pipeline_id and pipeline.on_failure = 'stop'
        ) then
            skipped := pitwheel.skip_steps(end_step.pipeline_id, below);
        else
            due := pitwheel.start_steps(end_step.pipeline_id, below, 1);
        end if;
    end if;
    update pitwheel.pipeline
    set open = pipeline.open - 1 - skipped,
        failed = pipeline.failed + (end_step.state <> 'done')::int,
        finished_at = case when pipeline.open = 1 + skipped then clock_timestamp() end
    where pipeline.id = end_step.pipeline_id;
    return due;
end
$$;
