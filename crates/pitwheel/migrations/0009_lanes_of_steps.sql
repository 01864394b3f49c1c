-- Lanes of steps: a step in a lane ends with its pipeline, and enters its lane at once.

-- done_in_lanes: as before. A step of a pipeline is not returned: finish.sql ends it together with its pipeline.
create or replace function pitwheel.done_in_lanes(ids bigint[], fences bigint[], holders bigint[], ctids tid[], histories boolean[])
returns table (id bigint, fence bigint, holder bigint, written boolean)
language plpgsql
as $$
#variable_conflict use_column
begin
    perform set_config('pitwheel.promotes_in_batch', 'on', true);
    return query
    with gone as (
        delete from pitwheel.job
        where job.ctid = any (ctids)
          and ((job.id, job.fence, job.holder) in (
              select claim.id, claim.fence, claim.holder
              from unnest(ids, fences, holders) as claim(id, fence, holder)
          )) is true
          and job.recurring is null
          and job.pipeline is null
          and job.lane is not null
        returning job.id, job.run_at, job.enqueued_at, job.fence, job.attempt, job.max_attempts, job.priority, job.crashes,
            job.queue, job.kind, job.payload, job.holder, job.claimed_at, job.timeout_ms, job.key, job.metadata, job.note,
            job.errors, job.lane, job.lane_pass
    ),
    kept as (
        insert into pitwheel.job_history (
            id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind,
            payload, worker, claimed_at, timeout_ms, key, metadata, note, errors, lane, lane_pass
        )
        select gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
            gone.priority, gone.crashes, 'done', gone.queue, gone.kind, gone.payload, gone.holder, gone.claimed_at,
            gone.timeout_ms, gone.key, gone.metadata, gone.note, gone.errors, gone.lane, gone.lane_pass
        from gone
        where (gone.id in (select asked.id from unnest(ids, histories) as asked(id, history) where asked.history)) is true
    ),
    next as materialized (
        select gone.id as former, job.tid
        from gone
        cross join lateral (
            select job.ctid as tid
            from pitwheel.job
            where job.lane = gone.lane
              and (case when job.run_at = 'infinity' then job.id else 0 end) > 0
              and (job.lane_pass and job.lane_at > clock_timestamp()) is not true
            order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
            limit 1
        ) as job
    ),
    promoted as (
        update pitwheel.job
        set run_at = greatest(job.lane_at, clock_timestamp()), lane_at = null, lane_former = next.former,
            lane_fence = nullif(job.fence, 0)
        from next
        where job.ctid = next.tid
        returning job.lane
    ),
    missed as materialized (
        select gone.id, gone.lane
        from gone
        where (gone.lane in (select promoted.lane from promoted)) is not true
    ),
    noted as (
        insert into pitwheel.lane as known (lane, current_job, changed_at)
        select missed.lane, missed.id, clock_timestamp() from missed
        on conflict (lane) do update set current_job = excluded.current_job, changed_at = excluded.changed_at
    ),
    checked as (
        insert into pitwheel.lane_check (xid, lane)
        select pg_current_xact_id(), missed.lane from missed
        on conflict (xid, lane) do nothing
    )
    select gone.id, gone.fence, gone.holder, true
    from gone;
    perform set_config('pitwheel.promotes_in_batch', 'off', true);
end
$$;

-- promote_lanes: as before. Returns the queues of the new heads.
drop function pitwheel.promote_lanes(text[]);
create function pitwheel.promote_lanes(lanes text[]) returns text[]
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    name   text;
    queues text[] := '{}';
begin
    foreach name in array promote_lanes.lanes loop
        if pitwheel.try_lane(name) then
            delete from pitwheel.lane_check where lane_check.xid = pg_current_xact_id() and lane_check.lane = name;
            queues := queues || pitwheel.promote_lane(name);
        end if;
    end loop;
    return array_remove(queues, null);
end
$$;

-- entered_lanes: up to 100 lanes into which the current transaction has enqueued, and which are to be promoted when it has
-- committed. Uses the primary key of lane_check.
create function pitwheel.entered_lanes() returns text[]
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select lane_check.lane
        from pitwheel.lane_check
        where lane_check.xid = pg_current_xact_id()
        order by lane_check.lane
        limit 100
    );
end
$$;
