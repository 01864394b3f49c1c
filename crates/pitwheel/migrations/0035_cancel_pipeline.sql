-- cancel_pipeline: as before, but the jobs are found by job_step whatever the statistics say. To read them in the order of their ids, a
-- plan could go through all of job_pkey, also through its dead entries.
create or replace function pitwheel.cancel_pipeline(pipeline_id bigint) returns table (changed boolean, requested boolean)
language plpgsql
as $$
#variable_conflict use_column
declare
    found_row pitwheel.pipeline;
begin
    select pipeline.* into found_row
    from pitwheel.pipeline
    where pipeline.id = cancel_pipeline.pipeline_id
    for no key update;
    if not found then
        return;
    end if;
    if found_row.open = 0 then
        return query select false, false;
        return;
    end if;
    update pitwheel.pipeline
    set cancelled_at = coalesce(pipeline.cancelled_at, clock_timestamp())
    where pipeline.id = found_row.id;
    update pitwheel.step
    set state = 'cancelled', ended_at = clock_timestamp()
    where step.pipeline = found_row.id and step.state = 'waiting';
    -- Locked, so that no claim takes one before it is cancelled.
    perform from pitwheel.job where job.pipeline = found_row.id order by job.id + 0 for no key update;
    with gone as (
        delete from pitwheel.job
        where job.pipeline = found_row.id and job.holder is null
        returning job.*
    ),
    kept as (
        insert into pitwheel.job_history (
            id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind, payload,
            timeout_ms, key, metadata, note, errors, lane, lane_pass, pipeline, step
        )
        select gone.id, clock_timestamp(),
            case when gone.run_at = 'infinity' then coalesce(gone.lane_at, gone.enqueued_at) else gone.run_at end, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
            gone.priority, gone.crashes, 'cancelled', gone.queue, gone.kind, gone.payload, gone.timeout_ms, gone.key,
            gone.metadata, gone.note, gone.errors, gone.lane, gone.lane_pass, gone.pipeline, gone.step
        from gone
    )
    update pitwheel.step
    set state = 'cancelled', ended_at = clock_timestamp()
    where step.pipeline = found_row.id
      and step.name = any (array(select gone.step from gone))
      and step.state = 'live';
    update pitwheel.job
    set cancel_requested_at = coalesce(job.cancel_requested_at, clock_timestamp())
    where job.pipeline = found_row.id;
    return query select true, found;
    perform pitwheel.recount_pipeline(found_row.id);
end
$$;
