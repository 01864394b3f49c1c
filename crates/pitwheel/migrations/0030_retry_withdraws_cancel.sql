-- A retry of a cancelled pipeline was undone by a step that was still stopping: it ended as cancelled, and the steps behind it were skipped.

-- retry_pipeline: as before, and withdraws the cancel from steps that still run.
create or replace function pitwheel.retry_pipeline(pipeline_id bigint) returns table (changed boolean, due text[])
language plpgsql
as $$
#variable_conflict use_column
begin
    perform from pitwheel.pipeline where pipeline.id = retry_pipeline.pipeline_id for no key update;
    if not found then
        return;
    end if;
    update pitwheel.step
    set state = 'waiting', result = null, ended_at = null
    where step.pipeline = retry_pipeline.pipeline_id
      and step.state in ('dead', 'cancelled', 'skipped');
    if not found then
        return query select false, null::text[];
        return;
    end if;
    update pitwheel.pipeline set cancelled_at = null where pipeline.id = retry_pipeline.pipeline_id;
    -- Otherwise a step that still stops because of the cancel would skip what waits for it once more.
    update pitwheel.job
    set cancel_requested_at = null
    where job.pipeline = retry_pipeline.pipeline_id and job.cancel_requested_at is not null;
    perform pitwheel.recount_pipeline(retry_pipeline.pipeline_id);
    return query select true, pitwheel.start_steps(retry_pipeline.pipeline_id, array(
        select step.name
        from pitwheel.step
        where step.pipeline = retry_pipeline.pipeline_id and step.state = 'waiting' and step.waiting = 0
    ));
end
$$;
