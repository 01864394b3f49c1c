-- A blocked job that leaves its lane: those behind it may have waited for it only. Since 0020 a job that waits for its time and lets no
-- others pass keeps those behind it waiting although the head lets others pass. When such a job was cancelled or deleted, nobody looked
-- at the lane, and those behind it waited for the time of the head.

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
