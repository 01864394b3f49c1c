-- breaking
-- The state of a recurring job travels with its runs. A settle that completes a run writes the new state into the next job, which it
-- inserts anyway, and neither reads nor writes `recurring`.
--
-- Whoever changes a recurring job, or ends a run in another way, locks the row in `recurring`, takes the state back from the live job, and
-- so ends its travel: a run that carries no state is settled with its recurring job locked, as before. So a settle that finds the state
-- knows that nothing was changed since the run was claimed.
--
-- Breaking: builds that do not know this would count and plan from the older state in `recurring`.

-- Of a run that carries the state of its recurring job; see `recurring` for what they mean.
alter table pitwheel.job
    add column anchor_at     timestamptz, -- null: it carries no state, and the others mean nothing
    add column next_run_at   timestamptz,
    add column interval_ms   bigint,
    add column version       bigint,
    add column runs          bigint,
    add column skipped       bigint,
    add column last_run_at   timestamptz,
    add column recurring_key text,
    add column cadence       text,
    add column misfire       text,
    add column reason        text;
-- Its live job carries the state; the columns that `job` has too are older.
alter table pitwheel.recurring add column carried boolean not null default false;

drop view pitwheel.recurrence;

-- What a settle changes in a recurring job.
create type pitwheel.run_state as (
    anchor_at   timestamptz, -- null: no state
    next_run_at timestamptz,
    interval_ms bigint,
    runs        bigint,
    skipped     bigint,
    last_run_at timestamptz,
    reason      text
);

-- state_of: the state that a run carries.
create function pitwheel.state_of(job pitwheel.job) returns pitwheel.run_state
language sql immutable
return row(job.anchor_at, job.next_run_at, job.interval_ms, job.runs, job.skipped, job.last_run_at, job.reason)::pitwheel.run_state;

-- with_state: a recurring job with the state that its run carries, if it does.
create function pitwheel.with_state(recurring pitwheel.recurring, state pitwheel.run_state) returns pitwheel.recurring
language plpgsql immutable
as $$
begin
    if state.anchor_at is not null then
        recurring.anchor_at := state.anchor_at;
        recurring.next_run_at := state.next_run_at;
        recurring.interval_ms := state.interval_ms;
        recurring.runs := state.runs;
        recurring.skipped := state.skipped;
        recurring.last_run_at := state.last_run_at;
        recurring.reason := state.reason;
    end if;
    return recurring;
end
$$;

-- Recurring jobs as they are now, for lists and for people who may read its tables.
create view pitwheel.recurring_now with (security_invoker = true) as
select recurring.id, recurring.created_at, recurring.updated_at, recurring.kind, recurring.key, recurring.queue, recurring.priority,
    recurring.payload, recurring.metadata, recurring.timeout_ms, recurring.max_attempts, recurring.cadence, recurring.misfire,
    recurring.version, recurring.enabled, recurring.planned, state.next_run_at, state.anchor_at, state.interval_ms, state.reason,
    state.runs, state.skipped, state.last_run_at, recurring.last_error, recurring.consecutive_failures,
    live.holder is not null as running
from pitwheel.recurring
left join lateral (
    select job.holder, pitwheel.state_of(job.*) as state
    from pitwheel.job
    where job.recurring = recurring.id
    limit 1
) as live on true
cross join lateral pitwheel.with_state(recurring.*, live.state) as state;

grant select on pitwheel.recurring_now to public;

-- take_back: writes the state that the live job of a recurring job carries into its row, which the caller has locked. Waits for the job.
-- If that job is gone with the state, a time that has passed may have been run: then the maintenance plans the next one.
create function pitwheel.take_back(recurring_id bigint) returns void
language plpgsql
as $$
declare
    live record;
begin
    loop
        select job.ctid as tid, job.anchor_at, job.next_run_at, job.interval_ms, job.runs, job.skipped, job.last_run_at, job.reason
        into live
        from pitwheel.job
        where job.recurring = take_back.recurring_id
        for no key update;
        exit when found;
        -- Not found: there is none, or it was settled meanwhile; then the next one, with a newer state, is seen by a new statement.
        exit when not exists (select from pitwheel.job where job.recurring = take_back.recurring_id);
    end loop;
    if live.anchor_at is not null then
        update pitwheel.recurring
        set anchor_at = live.anchor_at, next_run_at = live.next_run_at, interval_ms = live.interval_ms, runs = live.runs,
            skipped = live.skipped, last_run_at = live.last_run_at, reason = live.reason, carried = false
        where recurring.id = take_back.recurring_id;
        update pitwheel.job set anchor_at = null where job.ctid = live.tid;
    elsif live.tid is null then
        update pitwheel.recurring
        set planned = recurring.planned and (recurring.next_run_at > clock_timestamp()) is true,
            next_run_at = case when recurring.next_run_at > clock_timestamp() then recurring.next_run_at end,
            started_at = null, carried = false
        where recurring.id = take_back.recurring_id
          and recurring.carried;
    end if;
end
$$;

-- change_by_hand: a recurring job was changed or deleted by a statement that does not know what its run carries.
create function pitwheel.change_by_hand() returns trigger
language plpgsql
as $$
begin
    perform pitwheel.take_back(old.id);
    return null;
end
$$;

create trigger recurring_changed
    after delete or update of kind, key, enabled, queue, payload, metadata, priority, max_attempts, timeout_ms, cadence, misfire, version
    on pitwheel.recurring
    for each row when (old.carried) execute function pitwheel.change_by_hand();

-- place_run: makes the live job of a recurring job agree with its row, which the caller has locked and whose state was taken back. A run in
-- progress stays as it is. While a recurring job fails, its runs do not carry its state: a success has to clear the error.
create or replace function pitwheel.place_run(recurring_id bigint) returns void
language plpgsql
as $$
declare
    definition pitwheel.recurring;
    was        pitwheel.priority;
    carries    boolean;
begin
    select recurring.* into definition from pitwheel.recurring where recurring.id = place_run.recurring_id;
    if not found then
        return;
    end if;
    if not (definition.enabled and definition.planned) then
        delete from pitwheel.job where job.recurring = definition.id and job.holder is null;
        return;
    end if;
    carries := definition.consecutive_failures = 0 and definition.last_error is null;
    -- A job that is due already keeps its place in the queue. In another queue it must not appear in the past (cursor.rs).
    update pitwheel.job
    set run_at = case
            when greatest(job.run_at, definition.next_run_at) <= clock_timestamp()
                and (job.queue, job.priority) = (definition.queue, definition.priority) then job.run_at
            else greatest(definition.next_run_at, clock_timestamp())
        end,
        queue = definition.queue, payload = definition.payload, metadata = definition.metadata,
        timeout_ms = definition.timeout_ms, max_attempts = coalesce(definition.max_attempts, 2147483647),
        anchor_at = case when carries then definition.anchor_at end, next_run_at = definition.next_run_at,
        interval_ms = definition.interval_ms, version = definition.version, runs = definition.runs, skipped = definition.skipped,
        last_run_at = definition.last_run_at, recurring_key = definition.key, cadence = definition.cadence,
        misfire = definition.misfire, reason = definition.reason
    where job.recurring = definition.id
      and job.holder is null
    returning job.priority into was;
    if not found then
        insert into pitwheel.job (
            recurring, kind, queue, payload, metadata, priority, max_attempts, timeout_ms, run_at, enqueued_at, anchor_at, next_run_at,
            interval_ms, version, runs, skipped, last_run_at, recurring_key, cadence, misfire, reason
        )
        values (
            definition.id, definition.kind, definition.queue, definition.payload, definition.metadata, definition.priority,
            coalesce(definition.max_attempts, 2147483647), definition.timeout_ms,
            greatest(definition.next_run_at, clock_timestamp()), clock_timestamp(),
            case when carries then definition.anchor_at end, definition.next_run_at, definition.interval_ms, definition.version,
            definition.runs, definition.skipped, definition.last_run_at, definition.key, definition.cadence, definition.misfire,
            definition.reason
        )
        on conflict (recurring) where recurring is not null do nothing;
    elsif was <> definition.priority then
        -- A statement that names the priority makes it count as used.
        update pitwheel.job
        set priority = definition.priority
        where job.recurring = definition.id
          and job.holder is null;
    end if;
    if found and carries then
        update pitwheel.recurring set carried = true where recurring.id = definition.id and not recurring.carried;
    end if;
end
$$;

-- lock_recurring_of: as before, and takes back the state of the recurring job.
create or replace function pitwheel.lock_recurring_of(job_id bigint) returns bigint
language plpgsql
as $$
declare
    run     bigint;
    step_of bigint;
begin
    select job.recurring, job.pipeline into run, step_of
    from pitwheel.job
    where job.id >= lock_recurring_of.job_id
      and job.id <= lock_recurring_of.job_id
    order by job.id
    limit 1;
    if run is not null then
        perform from pitwheel.recurring where recurring.id = run for no key update;
        perform pitwheel.take_back(run);
    end if;
    if step_of is not null then
        perform from pitwheel.pipeline where pipeline.id = step_of for no key update;
    end if;
    return run;
end
$$;

-- create_recurring: as before.
create or replace function pitwheel.create_recurring(
    kind              text,
    key               text,
    cadence           text,
    payload           json        default '{}',
    misfire           text        default 'one',
    queue             text        default 'default',
    priority          integer     default 0,
    max_attempts      integer     default null,
    timeout           interval    default null,
    metadata          json        default null,
    first_run_at      timestamptz default null,
    first_anchor_at   timestamptz default null,
    changed_run_at    timestamptz default null,
    changed_anchor_at timestamptz default null,
    interval_ms       bigint      default null
) returns table (id bigint, is_new boolean, changed boolean, next_run_at timestamptz, reason text)
language plpgsql
as $$
#variable_conflict use_column
declare
    found_row     pitwheel.recurring;
    at_once       boolean := create_recurring.cadence !~ '^cron ';
    new_cadence   boolean;
    definition_ms bigint  := (extract(epoch from pitwheel.checked_span('timeout', create_recurring.timeout)) * 1000)::bigint;
begin
    perform pitwheel.check_payload(create_recurring.payload);
    if create_recurring.metadata is not null then
        perform pitwheel.check_payload(create_recurring.metadata);
    end if;
    if create_recurring.kind is null or create_recurring.kind !~ '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$' then
        raise exception 'kind `%` is not a name: 1 to 63 letters, digits and _ . : / -, starting with a letter or digit',
            create_recurring.kind using errcode = '22023';
    end if;
    if create_recurring.queue is null or create_recurring.queue !~ '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$' then
        raise exception 'queue `%` is not a name: 1 to 63 letters, digits and _ . : / -, starting with a letter or digit',
            create_recurring.queue using errcode = '22023';
    end if;
    if create_recurring.key is null or octet_length(create_recurring.key) not between 1 and 512 then
        raise exception 'key has % bytes, it may have 1 to 512', coalesce(octet_length(create_recurring.key), 0)
            using errcode = '22023';
    end if;
    if create_recurring.cadence is null or create_recurring.cadence !~ '^(every|cron|adaptive) .' then
        raise exception 'cadence `%`: write `every 15m`, `cron 0 3 * * * Europe/Zurich` or `adaptive 15m..24h`',
            create_recurring.cadence using errcode = '22023';
    end if;
    if create_recurring.priority is null or create_recurring.priority not between -9 and 9 then
        raise exception 'priority % is out of range: -9 to 9, higher first', create_recurring.priority using errcode = '22023';
    end if;
    if create_recurring.max_attempts not between 1 and 1000 then
        raise exception 'max_attempts % is out of range: 1 to 1000', create_recurring.max_attempts using errcode = '22023';
    end if;
    if create_recurring.timeout < interval '1 millisecond' then
        raise exception 'timeout % is not a time span above zero', create_recurring.timeout using errcode = '22023';
    end if;
    if create_recurring.misfire is null or create_recurring.misfire not in ('skip', 'one', 'all') then
        raise exception 'misfire `%` is not known: skip, one or all', create_recurring.misfire using errcode = '22023';
    end if;
    if create_recurring.interval_ms not between 1000 and 3162240000000 then
        raise exception 'interval_ms % is out of range: 1 second to 100 years', create_recurring.interval_ms using errcode = '22023';
    end if;
    perform pitwheel.checked_time('first_run_at', create_recurring.first_run_at),
        pitwheel.checked_time('first_anchor_at', create_recurring.first_anchor_at);
    loop
        insert into pitwheel.recurring as new (
            kind, key, cadence, misfire, queue, payload, metadata, priority, max_attempts, timeout_ms, interval_ms, planned,
            next_run_at, anchor_at, reason
        )
        values (
            create_recurring.kind, create_recurring.key, create_recurring.cadence, create_recurring.misfire,
            create_recurring.queue, create_recurring.payload, create_recurring.metadata, create_recurring.priority,
            create_recurring.max_attempts, definition_ms, create_recurring.interval_ms,
            at_once or create_recurring.first_run_at is not null,
            case when at_once then coalesce(create_recurring.first_run_at, clock_timestamp())
                else create_recurring.first_run_at end,
            coalesce(create_recurring.first_anchor_at, create_recurring.first_run_at, clock_timestamp()), 'created'
        )
        on conflict (kind, key) do nothing
        returning new.* into found_row;
        if found then
            perform pitwheel.place_run(found_row.id);
            return query select found_row.id, true, true, found_row.next_run_at, found_row.reason;
            return;
        end if;
        select recurring.* into found_row
        from pitwheel.recurring
        where recurring.kind = create_recurring.kind and recurring.key = create_recurring.key
        for no key update;
        -- Not found: it was deleted since.
        exit when found;
    end loop;
    perform pitwheel.take_back(found_row.id);
    new_cadence := (found_row.cadence, found_row.misfire)
        is distinct from (create_recurring.cadence, create_recurring.misfire);
    update pitwheel.recurring
    set queue = create_recurring.queue, payload = create_recurring.payload, metadata = create_recurring.metadata,
        priority = create_recurring.priority, max_attempts = create_recurring.max_attempts, timeout_ms = definition_ms
    where recurring.id = found_row.id;
    if new_cadence then
        perform pitwheel.change_recurring(
            found_row.id, create_recurring.cadence, create_recurring.misfire, create_recurring.changed_run_at,
            create_recurring.changed_anchor_at, create_recurring.interval_ms
        );
    end if;
    perform pitwheel.enable_recurring(found_row.id);
    perform pitwheel.place_run(found_row.id);
    return query
        select recurring.id, false,
            new_cadence or not found_row.enabled
                or (found_row.queue, found_row.payload::text, found_row.metadata::text, found_row.priority,
                    found_row.max_attempts, found_row.timeout_ms)
                is distinct from (recurring.queue, recurring.payload::text, recurring.metadata::text, recurring.priority,
                    recurring.max_attempts, recurring.timeout_ms),
            recurring.next_run_at, recurring.reason
        from pitwheel.recurring
        where recurring.id = found_row.id;
end
$$;

-- enable_recurring: as before. While it is disabled, no run carries its state.
create or replace function pitwheel.enable_recurring(recurring_id bigint)
returns table (changed boolean, queue text, next_run_at timestamptz, reason text)
language plpgsql
as $$
#variable_conflict use_column
declare
    was        boolean;
    enabled_at timestamptz;
begin
    select recurring.enabled into was
    from pitwheel.recurring
    where recurring.id = enable_recurring.recurring_id
    for no key update;
    enabled_at := clock_timestamp();
    if not was then
        update pitwheel.recurring
        set enabled = true,
            planned = recurring.next_run_at is not null,
            -- The times that passed meanwhile are not made up for.
            anchor_at = case when recurring.next_run_at > enabled_at then recurring.anchor_at else enabled_at end,
            next_run_at = case when recurring.next_run_at is not null then greatest(recurring.next_run_at, enabled_at) end,
            reason = 'enabled',
            updated_at = enabled_at
        where recurring.id = enable_recurring.recurring_id;
        perform pitwheel.place_run(enable_recurring.recurring_id);
    end if;
    return query
        select not was, recurring.queue, recurring.next_run_at, recurring.reason
        from pitwheel.recurring_now as recurring
        where recurring.id = enable_recurring.recurring_id;
end
$$;

-- disable_recurring: as before.
create or replace function pitwheel.disable_recurring(recurring_id bigint)
returns table (changed boolean, queue text, next_run_at timestamptz, reason text)
language plpgsql
as $$
#variable_conflict use_column
declare
    was boolean;
begin
    select recurring.enabled into was
    from pitwheel.recurring
    where recurring.id = disable_recurring.recurring_id
    for no key update;
    if was then
        perform pitwheel.take_back(disable_recurring.recurring_id);
        update pitwheel.recurring
        set enabled = false, updated_at = clock_timestamp()
        where recurring.id = disable_recurring.recurring_id;
        perform pitwheel.place_run(disable_recurring.recurring_id);
    end if;
    return query
        select was, recurring.queue, recurring.next_run_at, recurring.reason
        from pitwheel.recurring
        where recurring.id = disable_recurring.recurring_id;
end
$$;

-- change_recurring: as before.
create or replace function pitwheel.change_recurring(
    recurring_id bigint,
    cadence      text,
    misfire      text        default null,
    run_at       timestamptz default null,
    anchor_at    timestamptz default null,
    interval_ms  bigint      default null
) returns table (changed boolean, queue text, next_run_at timestamptz, reason text)
language plpgsql
as $$
#variable_conflict use_column
begin
    if change_recurring.cadence is null or change_recurring.cadence !~ '^(every|cron|adaptive) .' then
        raise exception 'cadence `%`: write `every 15m`, `cron 0 3 * * * Europe/Zurich` or `adaptive 15m..24h`',
            change_recurring.cadence using errcode = '22023';
    end if;
    if change_recurring.misfire not in ('skip', 'one', 'all') then
        raise exception 'misfire `%` is not known: skip, one or all', change_recurring.misfire using errcode = '22023';
    end if;
    if change_recurring.interval_ms not between 1000 and 3162240000000 then
        raise exception 'interval_ms % is out of range: 1 second to 100 years', change_recurring.interval_ms using errcode = '22023';
    end if;
    perform pitwheel.checked_time('run_at', change_recurring.run_at),
        pitwheel.checked_time('anchor_at', change_recurring.anchor_at);
    perform from pitwheel.recurring where recurring.id = change_recurring.recurring_id for no key update;
    perform pitwheel.take_back(change_recurring.recurring_id);
    update pitwheel.recurring
    set cadence = change_recurring.cadence,
        misfire = coalesce(change_recurring.misfire, recurring.misfire),
        version = recurring.version + 1,
        planned = change_recurring.run_at is not null,
        next_run_at = change_recurring.run_at,
        anchor_at = coalesce(change_recurring.anchor_at, change_recurring.run_at, clock_timestamp()),
        interval_ms = change_recurring.interval_ms,
        reason = 'its cadence was changed',
        updated_at = clock_timestamp()
    where recurring.id = change_recurring.recurring_id;
    perform pitwheel.place_run(change_recurring.recurring_id);
    return query
        select true, recurring.queue, recurring.next_run_at, recurring.reason
        from pitwheel.recurring
        where recurring.id = change_recurring.recurring_id;
end
$$;

-- run_recurring: as before.
create or replace function pitwheel.run_recurring(recurring_id bigint)
returns table (changed boolean, queue text, enabled boolean)
language plpgsql
as $$
#variable_conflict use_column
declare
    found_row pitwheel.recurring;
    runs_now  boolean;
begin
    select recurring.* into found_row
    from pitwheel.recurring
    where recurring.id = run_recurring.recurring_id
    for no key update;
    if not found then
        return;
    end if;
    -- Locked, so that no claim takes it before it is moved.
    perform from pitwheel.job where job.recurring = found_row.id and job.holder is null for no key update;
    runs_now := exists (select from pitwheel.job where job.recurring = found_row.id and job.holder is not null);
    if found_row.enabled and not runs_now then
        perform pitwheel.take_back(found_row.id);
        update pitwheel.recurring
        set planned = true,
            -- A time that is still to come stays planned after this run; one that has passed is replaced by it.
            anchor_at = case when recurring.planned and recurring.anchor_at > clock_timestamp() then recurring.anchor_at
                else clock_timestamp() end,
            next_run_at = clock_timestamp(),
            reason = 'run now'
        where recurring.id = found_row.id;
        perform pitwheel.place_run(found_row.id);
    end if;
    return query select found_row.enabled and not runs_now, found_row.queue, found_row.enabled;
end
$$;

-- skip_run: a waiting run, which carried this state, is gone: cancelled or deleted by a person. The maintenance plans the next one. If it was
-- to start before its planned time, because a person asked for it, the planned time stays. The caller has locked the recurring job.
create function pitwheel.skip_run(recurring_id bigint, state pitwheel.run_state, reason text) returns void
language plpgsql
as $$
declare
    was   pitwheel.recurring;
    stays boolean;
begin
    select now.* into was
    from pitwheel.recurring
    cross join lateral pitwheel.with_state(recurring.*, skip_run.state) as now
    where recurring.id = skip_run.recurring_id;
    stays := coalesce(was.next_run_at < was.anchor_at, false) and was.anchor_at > clock_timestamp();
    update pitwheel.recurring
    set planned = stays, anchor_at = was.anchor_at, next_run_at = case when stays then was.anchor_at end,
        interval_ms = was.interval_ms, runs = was.runs, skipped = was.skipped + (not stays)::int, last_run_at = was.last_run_at,
        reason = skip_run.reason, carried = false
    where recurring.id = skip_run.recurring_id;
    if stays then
        perform pitwheel.place_run(skip_run.recurring_id);
    end if;
end
$$;

-- move_run: a waiting run, which carried this state, is due at another time and carries it no more. The caller has locked the recurring job.
create function pitwheel.move_run(recurring_id bigint, state pitwheel.run_state, run_at timestamptz, reason text) returns void
language plpgsql
as $$
declare
    was pitwheel.recurring;
begin
    select now.* into was
    from pitwheel.recurring
    cross join lateral pitwheel.with_state(recurring.*, move_run.state) as now
    where recurring.id = move_run.recurring_id;
    update pitwheel.recurring
    set anchor_at = was.anchor_at, next_run_at = move_run.run_at, interval_ms = was.interval_ms, runs = was.runs, skipped = was.skipped,
        last_run_at = was.last_run_at, reason = move_run.reason, carried = false
    where recurring.id = move_run.recurring_id;
end
$$;

-- restore_run: enqueues the next run of a recurring job again whose live job is gone, at its time, unless the maintenance has to plan it
-- (take_back). False: it has a live job. The caller has locked the recurring job.
create function pitwheel.restore_run(recurring_id bigint) returns boolean
language plpgsql
as $$
begin
    if exists (select from pitwheel.job where job.recurring = restore_run.recurring_id) then
        return false;
    end if;
    perform pitwheel.take_back(restore_run.recurring_id);
    perform pitwheel.place_run(restore_run.recurring_id);
    return true;
end
$$;
