-- Rows of a day without a partition are in the default partition. They were deleted in the transaction that drops partitions, which locks
-- the whole history: with half a million of them, settles waited for more than a second.

-- prune_history: as before, but it leaves the rows of the default partition to prune_default.
create or replace function pitwheel.prune_history(keep interval) returns integer
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set datestyle = 'ISO'
set timezone = 'UTC'
set lock_timeout = '50ms'
as $$
declare
    day     date;
    part    text;
    dropped integer := 0;
begin
    if not pg_try_advisory_xact_lock(hashtextextended('pitwheel.prune_history', 0)) then
        return 0;
    end if;
    for day in
        select (now() at time zone 'utc')::date + n from generate_series(0, 7) as n
    loop
        part := 'job_history_' || to_char(day, 'YYYYMMDD');
        continue when to_regclass('pitwheel.' || part) is not null;
        begin
            -- Created beside its parent and attached: `partition of` would take a lock that blocks every settle.
            execute format('create table pitwheel.%I (like pitwheel.job_history including constraints)', part);
            execute format(
                'alter table pitwheel.job_history attach partition pitwheel.%I for values from (%L) to (%L)',
                part, day::timestamp at time zone 'utc', (day + 1)::timestamp at time zone 'utc');
        exception when check_violation or lock_not_available then
            -- The default partition has rows of that day already; they stay there until they are too old. Or a reader has locked it.
            null;
        end;
    end loop;
    for part in
        select child.relname
        from pg_inherits as inherits
        join pg_class as child on child.oid = inherits.inhrelid
        where inherits.inhparent = 'pitwheel.job_history'::regclass
          and child.relname ~ '^job_history_[0-9]{8}$'
          and to_date(right(child.relname, 8), 'YYYYMMDD') + 1 <= ((now() - keep) at time zone 'utc')::date
    loop
        begin
            execute format('drop table pitwheel.%I', part);
            dropped := dropped + 1;
        exception when lock_not_available then
            -- A reader has locked the history: the next call drops what is left.
            exit;
        end;
    end loop;
    return dropped;
end
$$;

-- prune_default: deletes what is older than `keep` of the next `rows_max` rows of the default partition, above the ctid `above`. Returns
-- the ctid up to which it looked; null: there are no more rows. Reads the table by ranges of ctids, so that no call reads again what
-- the last one has deleted.
create function pitwheel.prune_default(keep interval, above tid, rows_max integer) returns tid
language sql
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
set enable_seqscan = off
as $$
with page as materialized (
    select history.ctid as tid, history.finished_at
    from pitwheel.job_history_default as history
    where history.ctid > prune_default.above
    limit prune_default.rows_max
),
pruned as (
    delete from pitwheel.job_history_default as history
    where history.ctid = any (array(select page.tid from page where page.finished_at < now() - prune_default.keep))
)
select max(page.tid) from page
$$;
revoke execute on function pitwheel.prune_default(interval, tid, integer) from public;
