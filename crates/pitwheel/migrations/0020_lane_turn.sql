-- Turns in a lane: a job that waits for its time and lets no others pass keeps those behind it waiting, but not those before it. Until
-- now it took the place of a job before it that lets others pass, and this one waited for it beyond its own time.

-- promote_lane: as before, but of the first job that lets no others pass, if it waits, and of the jobs before it, the one whose time
-- comes first becomes the head.
--
-- Makes the next job of a lane its head, if it has none. A head that waits for its time and lets others pass is replaced. The caller
-- has locked the lane (try_lane). Every statement has a snapshot of its own, so it sees what was committed before the lock was given.
-- Returns the queue of the new head; null: nothing was changed.
create or replace function pitwheel.promote_lane(lane text) returns text
language plpgsql
as $$
#variable_conflict use_column
declare
    head     record;
    first    record;
    next     tid;
    promoted text;
begin
    select job.ctid as tid, job.id,
        case when job.fence > coalesce(job.lane_fence, 0) then job.id else job.lane_former end as current_job,
        job.holder is null and job.lane_pass and job.run_at > clock_timestamp() as lets_pass,
        job.run_at
    into head
    from pitwheel.job
    where job.lane = promote_lane.lane
      and (case when job.run_at = 'infinity' then job.id else 0 end) = 0
    order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
    limit 1;
    if found and head.lets_pass is not true then
        return null;
    end if;
    select job.ctid as tid, job.id, (job.lane_at > clock_timestamp()) is true as waits into first
    from pitwheel.job
    where job.lane = promote_lane.lane
      and (case when job.run_at = 'infinity' then job.id else 0 end) > 0
      and (job.lane_pass and job.lane_at > clock_timestamp()) is not true
    order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
    limit 1;
    next := first.tid;
    if first.waits is not false then
        -- It waits, as all before it do, and those behind it wait for it: the one whose time comes first.
        select job.ctid into next
        from (
            select job.ctid, job.lane_at, job.id
            from pitwheel.job
            where job.lane = promote_lane.lane
              and (case when job.run_at = 'infinity' then job.id else 0 end) > 0
              and (case when job.run_at = 'infinity' then job.id else 0 end) <= coalesce(first.id, 9223372036854775807)
            order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
            offset 0
        ) as job
        where head.tid is null or head.id > first.id or job.lane_at < head.run_at
        order by job.lane_at, job.id
        limit 1;
    end if;
    if next is null then
        return null;
    end if;
    if head.tid is not null then
        update pitwheel.job
        set lane_at = job.run_at, run_at = 'infinity', lane_former = null
        where job.ctid = any (array(
            select job.ctid
            from pitwheel.job
            where job.ctid = head.tid and job.holder is null and job.run_at < 'infinity'
            for no key update skip locked
        ));
        if found and head.current_job is not null then
            insert into pitwheel.lane as known (lane, current_job, changed_at)
            values (promote_lane.lane, head.current_job, clock_timestamp())
            on conflict (lane) do update set current_job = excluded.current_job, changed_at = excluded.changed_at;
        end if;
    end if;
    if found or head.tid is null then
        update pitwheel.job
        set run_at = greatest(job.lane_at, clock_timestamp()), lane_at = null, lane_fence = nullif(job.fence, 0)
        where job.ctid = any (array(
            select job.ctid
            from pitwheel.job
            where job.ctid = next and job.run_at = 'infinity'
            for no key update skip locked
        ))
        returning job.queue into promoted;
    end if;
    if promoted is null then
        -- Another transaction has locked it.
        insert into pitwheel.lane_check (xid, lane) values (pg_current_xact_id(), promote_lane.lane)
        on conflict (xid, lane) do nothing;
    end if;
    return promoted;
end
$$;

-- leave_lane: as before, but a next job that waits for its time is left to promote_checked, which compares times.
create or replace function pitwheel.leave_lane() returns trigger
language plpgsql
as $$
declare
    former bigint := case when old.fence > coalesce(old.lane_fence, 0) then old.id else old.lane_former end;
begin
    update pitwheel.job
    set run_at = greatest(job.lane_at, clock_timestamp()), lane_at = null, lane_former = former,
        lane_fence = nullif(job.fence, 0)
    where job.ctid = any (array(
        select free.tid
        from (
            select job.ctid as tid
            from pitwheel.job
            where job.lane = old.lane
              and (case when job.run_at = 'infinity' then job.id else 0 end) > 0
              and (job.lane_pass and job.lane_at > clock_timestamp()) is not true
            order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
            limit 1
        ) as next
        cross join lateral (
            select job.ctid as tid
            from pitwheel.job
            where job.ctid = next.tid and job.run_at = 'infinity' and (job.lane_at > clock_timestamp()) is not true
            for no key update skip locked
        ) as free
    ));
    if not found then
        if former is not null then
            insert into pitwheel.lane (lane, current_job, changed_at) values (old.lane, former, clock_timestamp())
            on conflict (lane) do update set current_job = excluded.current_job, changed_at = excluded.changed_at;
        end if;
        insert into pitwheel.lane_check (xid, lane) values (pg_current_xact_id(), old.lane) on conflict (xid, lane) do nothing;
    end if;
    return null;
end
$$;

-- done_in_lanes: as before, but a next job that waits for its time is left to promote_checked, which compares times.
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
        where job.ctid = next.tid and (job.lane_at > clock_timestamp()) is not true
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
