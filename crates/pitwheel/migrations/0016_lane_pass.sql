-- promote_lane: as before, and a head that lets others pass is also replaced by a blocked job whose time comes before its own. Until
-- now that one waited for the time of the head.
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
    next     tid;
    promoted text;
begin
    select job.ctid as tid,
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
    select job.ctid into next
    from pitwheel.job
    where job.lane = promote_lane.lane
      and (case when job.run_at = 'infinity' then job.id else 0 end) > 0
      and (job.lane_pass and job.lane_at > clock_timestamp()) is not true
    order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
    limit 1;
    if next is null then
        -- All of them wait for their time: the one whose time comes first.
        select job.ctid into next
        from (
            select job.ctid, job.lane_at, job.id
            from pitwheel.job
            where job.lane = promote_lane.lane
              and (case when job.run_at = 'infinity' then job.id else 0 end) > 0
            order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
            offset 0
        ) as job
        where head.tid is null or job.lane_at < head.run_at
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
