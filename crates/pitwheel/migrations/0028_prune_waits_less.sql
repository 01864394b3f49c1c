-- A drop of a partition locks the whole history. While it waited for a reader (`pg_dump`, a long report), every settle waited behind it, for
-- 2 s at each try of each worker.

-- prune_history: as before, and waits less than a settle waits for a lock. What is locked is left for the next call.
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
    delete from pitwheel.job_history_default where finished_at < now() - keep;
    return dropped;
end
$$;
