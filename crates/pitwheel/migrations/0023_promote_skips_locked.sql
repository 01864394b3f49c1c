-- promote_checked: as before, but a row of lane_check that another transaction has locked is passed over. Until now one such row failed
-- the whole page after lock_timeout, and no lane was promoted any more.
--
-- Promotes lanes that have to be looked at, of up to `most` rows of the transactions from `first` on. Rows that are locked do not count:
-- however many there are, the page has those behind them. A row is deleted before the lane is looked at, so that no row is deleted that
-- was committed later. Returns the queues of the new heads, how many rows were found, and whether none is left of a transaction older
-- than all that are open: a row that was locked, or whose lane another transaction promotes, stays and is read again.
create or replace function pitwheel.promote_checked(
    first xid8, most integer, out queues text[], out checks integer, out complete boolean
)
language plpgsql
as $$
declare
    checked record;
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
        if pitwheel.try_lane(checked.lane) then
            delete from pitwheel.lane_check
            where lane_check.xid = any (checked.xids) and lane_check.lane = checked.lane;
            queues := queues || pitwheel.promote_lane(checked.lane);
        end if;
    end loop;
    -- The caller reads on from a snapshot that is older than this one, so what is left above its oldest transaction is found.
    complete := not exists (
        select from pitwheel.lane_check
        where lane_check.xid >= promote_checked.first
          and lane_check.xid < pg_snapshot_xmin(pg_current_snapshot())
    );
    queues := array_remove(queues, null);
end
$$;
