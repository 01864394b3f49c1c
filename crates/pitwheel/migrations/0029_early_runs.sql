-- A run that began before the planned time (`run now`) and was settled without a plan after it. The planned time was lost: the
-- maintenance took it for one that had been cancelled.

-- stays_planned: whether the planned time of a recurring job is still to be run, after a run that began at `started_at` has ended without a plan.
create function pitwheel.stays_planned(recurring pitwheel.recurring, started_at timestamptz) returns boolean
language sql volatile
return recurring.anchor_at > clock_timestamp()
    or (recurring.planned and recurring.anchor_at > started_at and recurring.misfire <> 'skip' and recurring.cadence !~ '^adaptive ') is true;

-- skips_planned: whether that planned time has passed, and is skipped by the policy for missed times.
create function pitwheel.skips_planned(recurring pitwheel.recurring, started_at timestamptz) returns boolean
language sql volatile
return (recurring.enabled and recurring.planned and recurring.misfire = 'skip' and recurring.cadence !~ '^adaptive '
    and recurring.anchor_at > started_at and recurring.anchor_at <= clock_timestamp()) is true;

-- finish: as before, but for such a run.
create or replace function pitwheel.finish(
    job_id bigint, fence bigint, holder bigint, state text, error text, result json
) returns boolean
language plpgsql
as $$
declare
    run     bigint  := pitwheel.lock_recurring_of(finish.job_id);
    claimed tid;
    gone    pitwheel.job;
begin
    select job.ctid into claimed
    from pitwheel.job
    where job.id >= finish.job_id
      and job.id <= finish.job_id
      and job.fence = finish.fence
      and job.holder = coalesce(finish.holder, job.holder)
    order by job.id
    limit 1
    for update;
    if not found then
        return false;
    end if;
    delete from pitwheel.job where job.ctid = claimed returning job.* into gone;
    if finish.state is not null or gone.pipeline is not null then
        insert into pitwheel.job_history (
            id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind,
            payload, worker, claimed_at, timeout_ms, key, metadata, note, errors, result, recurring, lane,
            lane_pass, pipeline, step
        )
        values (
            gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
            gone.priority, gone.crashes, coalesce(finish.state, 'done'), gone.queue, gone.kind, gone.payload, gone.holder,
            gone.claimed_at, gone.timeout_ms, gone.key, gone.metadata, gone.note,
            pitwheel.with_error(gone.errors, finish.error), finish.result, gone.recurring, gone.lane,
            gone.lane_pass, gone.pipeline, gone.step
        );
    end if;
    if gone.pipeline is not null then
        perform pitwheel.end_step(gone.pipeline, gone.step, gone.id, coalesce(finish.state, 'done'), finish.result);
    end if;
    update pitwheel.recurring
    set runs = recurring.runs + 1,
        last_run_at = clock_timestamp(),
        consecutive_failures = case coalesce(finish.state, 'done')
            when 'done' then 0
            when 'dead' then recurring.consecutive_failures + 1
            else recurring.consecutive_failures
        end,
        last_error = case coalesce(finish.state, 'done')
            when 'done' then null
            else coalesce(finish.error::jsonb ->> 'message', recurring.last_error)
        end,
        -- A run before its planned time, because a person asked for it, leaves that time as it is.
        planned = not recurring.enabled or pitwheel.stays_planned(recurring.*, gone.claimed_at),
        next_run_at = case
            when pitwheel.stays_planned(recurring.*, gone.claimed_at) then recurring.anchor_at
            when not recurring.enabled then recurring.next_run_at
        end,
        skipped = recurring.skipped + pitwheel.skips_planned(recurring.*, gone.claimed_at)::int,
        reason = 'to be planned',
        started_at = gone.claimed_at
    where recurring.id = run;
    perform pitwheel.place_run(run);
    return true;
end
$$;
