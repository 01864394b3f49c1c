-- A blocked job that leaves its lane: those behind it may have waited for it only. Since 0020 a job that waits for its time and lets no
-- others pass keeps those behind it waiting although the head lets others pass. When such a job was cancelled or deleted, the lane was
-- not looked at, and those behind it waited for the time of the head.

-- promotes_next: whether leave_lane follows a job of a lane that leaves the table: always, but done_in_lanes does the same for its own.
-- The trigger names the parameter.
create or replace function pitwheel.promotes_next(run_at timestamptz) returns boolean
language plpgsql stable
as $$
begin
    return current_setting('pitwheel.promotes_in_batch', true) is distinct from 'on';
end
$$;

-- leave_lane: as before, and after a blocked job the lane is looked at later. Settles delete no blocked job.
create or replace function pitwheel.leave_lane() returns trigger
language plpgsql
as $$
declare
    former bigint := case when old.fence > coalesce(old.lane_fence, 0) then old.id else old.lane_former end;
begin
    if old.run_at < 'infinity' then
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
        if found then
            return null;
        end if;
        if former is not null then
            insert into pitwheel.lane (lane, current_job, changed_at) values (old.lane, former, clock_timestamp())
            on conflict (lane) do update set current_job = excluded.current_job, changed_at = excluded.changed_at;
        end if;
    end if;
    insert into pitwheel.lane_check (xid, lane) values (pg_current_xact_id(), old.lane) on conflict (xid, lane) do nothing;
    return null;
end
$$;

-- promote_lane: as before, but a head that lets no others pass is replaced, too, by a job before it whose time comes first. That job was
-- rescheduled, or committed late, after the head got its turn. Until now it waited for the time of the head. A head that has run keeps
-- its turn.
--
-- Makes the next job of a lane its head, if it has none. A head that waits for its time is replaced by one that comes before it; if it
-- lets others pass, also by one behind it. The caller has locked the lane (try_lane). Every statement has a snapshot of its own, so it
-- sees what was committed before the lock was given. Returns the queue of the new head; null: nothing was changed.
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
        job.holder is null and job.run_at > clock_timestamp()
            and (job.lane_pass or job.fence <= coalesce(job.lane_fence, 0)) as gives_way,
        -- The last job that may replace it.
        case when job.lane_pass then 9223372036854775807 else job.id end as last_id,
        job.lane_pass is true as lets_pass,
        job.run_at
    into head
    from pitwheel.job
    where job.lane = promote_lane.lane
      and (case when job.run_at = 'infinity' then job.id else 0 end) = 0
    order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
    limit 1;
    if found and head.gives_way is not true then
        return null;
    end if;
    select job.ctid as tid, job.id, (job.lane_at > clock_timestamp()) is true as waits into first
    from pitwheel.job
    where job.lane = promote_lane.lane
      and (case when job.run_at = 'infinity' then job.id else 0 end) > 0
      and (case when job.run_at = 'infinity' then job.id else 0 end) <= coalesce(head.last_id, 9223372036854775807)
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
              and (case when job.run_at = 'infinity' then job.id else 0 end)
                  <= coalesce(first.id, head.last_id, 9223372036854775807)
            order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
            offset 0
        ) as job
        where head.tid is null or head.lets_pass and head.id > first.id or job.lane_at < head.run_at
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
