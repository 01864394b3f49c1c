-- promote_checked: as before, but a lane that cannot be promoted holds up no other. Until now one lane whose update a user's trigger
-- refuses, or whose row in pitwheel.lane another transaction has locked, failed the whole page, again at each look.
--
-- Promotes lanes that have to be looked at, of up to `most` rows of the transactions from `first` on. Rows that are locked do not count:
-- however many there are, the page has those behind them. A row is deleted before the lane is looked at, so that no row is deleted that
-- was committed later. If a lane fails, the page is done again with a subtransaction for each lane, and what is to be looked at
-- in a lane that fails is put behind all others. Returns the queues of the new heads, how many rows were found, and whether none is
-- left of a transaction older than all that are open: a row that was locked, or whose lane another transaction promotes, stays and is
-- read again.
create or replace function pitwheel.promote_checked(
    first xid8, most integer, out queues text[], out checks integer, out complete boolean
)
language plpgsql
as $$
declare
    checked record;
    apart   boolean := false;
    waits   text := current_setting('lock_timeout');
    failed  integer := 0;
    problem text;
begin
    loop
        begin
            queues := '{}';
            checks := 0;
            for checked in
                select page.lane, array_agg(page.xid) as xids, count(*) as rows
                from (
                    select lane_check.lane, lane_check.xid
                    from pitwheel.lane_check
                    where lane_check.xid >= promote_checked.first
                    order by lane_check.xid, lane_check.lane
                    limit promote_checked.most
                    for update skip locked
                ) as page
                group by page.lane
            loop
                checks := checks + checked.rows;
                continue when not pitwheel.try_lane(checked.lane);
                delete from pitwheel.lane_check
                where lane_check.xid = any (checked.xids) and lane_check.lane = checked.lane;
                if apart then
                    begin
                        queues := queues || pitwheel.promote_lane(checked.lane);
                    exception when others then
                        failed := failed + 1;
                        problem := format('%s (%s)', sqlerrm, sqlstate);
                        insert into pitwheel.lane_check (xid, lane) values (pg_current_xact_id(), checked.lane)
                        on conflict (xid, lane) do nothing;
                    end;
                else
                    queues := queues || pitwheel.promote_lane(checked.lane);
                end if;
            end loop;
            exit;
        exception when others then
            -- These classes (a wrong state, schema or right, no resources, an operator) concern no single lane.
            if apart or sqlstate ~ '^(25|42|53|57|58|XX)' then
                raise;
            end if;
            -- The 100 lanes of a page together wait for 2 s at most. Most are not locked, or soon free.
            apart := true;
            perform set_config('lock_timeout', '20ms', true);
        end;
    end loop;
    if apart then
        perform set_config('lock_timeout', waits, true);
    end if;
    if failed > 0 then
        raise warning '% lanes cannot be promoted, will try again; the last error is: %', failed, problem;
    end if;
    -- The caller reads on from a snapshot that is older than this one, so what is left above its oldest transaction is found.
    complete := not exists (
        select from pitwheel.lane_check
        where lane_check.xid >= promote_checked.first
          and lane_check.xid < pg_snapshot_xmin(pg_current_snapshot())
    );
    queues := array_remove(queues, null);
end
$$;
