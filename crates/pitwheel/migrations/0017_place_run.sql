-- place_run changes the priority of a live job only if it is another one. Its update named the priority, so the first recurring job
-- of a database made every priority count as used (job_changes_priority fires for the statement), and claims read 19 levels of each
-- queue from then on.
create or replace function pitwheel.place_run(recurring_id bigint) returns void
language plpgsql
as $$
begin
    delete from pitwheel.job
    using pitwheel.recurring
    where recurring.id = place_run.recurring_id
      and not (recurring.enabled and recurring.planned)
      and job.recurring = place_run.recurring_id
      and job.holder is null;
    -- A job that is due already keeps its place in the queue. In another queue it must not appear in the past (cursor.rs).
    update pitwheel.job
    set run_at = case
            when greatest(job.run_at, recurring.next_run_at) <= clock_timestamp()
                and (job.queue, job.priority) = (recurring.queue, recurring.priority) then job.run_at
            else greatest(recurring.next_run_at, clock_timestamp())
        end,
        queue = recurring.queue, payload = recurring.payload, metadata = recurring.metadata, timeout_ms = recurring.timeout_ms,
        max_attempts = coalesce(recurring.max_attempts, 2147483647)
    from pitwheel.recurring
    where recurring.id = place_run.recurring_id
      and recurring.enabled
      and recurring.planned
      and job.recurring = place_run.recurring_id
      and job.holder is null;
    if exists (
        select from pitwheel.job
        join pitwheel.recurring on recurring.id = job.recurring
        where job.recurring = place_run.recurring_id
          and job.holder is null
          and job.priority <> recurring.priority
    ) then
        update pitwheel.job
        set priority = recurring.priority
        from pitwheel.recurring
        where recurring.id = place_run.recurring_id
          and job.recurring = place_run.recurring_id
          and job.holder is null;
    end if;
    insert into pitwheel.job (
        recurring, kind, queue, payload, metadata, priority, max_attempts, timeout_ms, run_at, enqueued_at
    )
    select recurring.id, recurring.kind, recurring.queue, recurring.payload, recurring.metadata, recurring.priority,
        coalesce(recurring.max_attempts, 2147483647), recurring.timeout_ms,
        greatest(recurring.next_run_at, clock_timestamp()), clock_timestamp()
    from pitwheel.recurring
    where recurring.id = place_run.recurring_id
      and recurring.enabled
      and recurring.planned
    on conflict (recurring) where recurring is not null do nothing;
end
$$;
