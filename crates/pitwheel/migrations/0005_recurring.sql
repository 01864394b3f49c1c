-- Recurring jobs: a definition and its state. While one is enabled and planned, `job` has one live job for it, its next run.
--
-- Whoever changes a recurring job together with its live job locks the row in `recurring` first. Only the settle of a run begins
-- with the job, and it waits for neither row. So no two of them can deadlock.

create table pitwheel.recurring (
    id                   bigint generated always as identity primary key,
    anchor_at            timestamptz       not null, -- the planned time of the next run, without jitter; others are counted from it
    created_at           timestamptz       not null default clock_timestamp(),
    updated_at           timestamptz       not null default clock_timestamp(), -- the last change of the definition
    version              bigint            not null default 0, -- counts the changes of the cadence
    runs                 bigint            not null default 0,
    skipped              bigint            not null default 0, -- planned times that were not run
    consecutive_failures integer           not null default 0,
    priority             pitwheel.priority not null,
    enabled              boolean           not null default true,
    planned              boolean           not null, -- false: the next run is to be planned, by the maintenance of any node
    misfire              text              not null constraint recurring_misfire check (misfire in ('skip', 'one', 'all')),
    kind                 text              not null,
    key                  text              not null,
    queue                text              not null,
    cadence              text              not null,
    payload              json              not null,
    next_run_at          timestamptz,      -- null: not known before it is planned
    last_run_at          timestamptz,
    interval_ms          bigint,           -- of an adaptive cadence
    timeout_ms           bigint,
    max_attempts         integer,          -- of one run; null: without limit
    reason               text,             -- why `next_run_at` is then
    last_error           text,
    metadata             json,
    constraint recurring_key unique (kind, key)
) with (
    -- A settle changes no indexed column. With room in the page it is a HOT update.
    fillfactor = 60,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000
);
-- What the maintenance has to plan. A settle that plans the next run itself does not change these columns.
create index recurring_unplanned on pitwheel.recurring (id) where enabled and not planned;

-- What the time of the next run depends on, and the time: id, key, cadence, misfire, version, anchor, interval, failures, now. One
-- value, so that a claim reads nothing for jobs that are no runs.
create view pitwheel.recurrence as
select recurring.id, json_build_array(
    recurring.id, recurring.key, recurring.cadence, recurring.misfire, recurring.version,
    (extract(epoch from recurring.anchor_at) * 1000000)::bigint, recurring.interval_ms, recurring.consecutive_failures,
    (extract(epoch from clock_timestamp()) * 1000000)::bigint
)::text as state
from pitwheel.recurring;

-- The recurring job of which a job is a run.
alter table pitwheel.job add column recurring bigint;
alter table pitwheel.job_history add column recurring bigint;
-- A recurring job has at most one live job.
create unique index job_recurring on pitwheel.job (recurring) where recurring is not null;
create index job_history_recurring on pitwheel.job_history (recurring, id) where recurring is not null;

-- place_run: makes the live job of a recurring job agree with its row, which the caller has locked. A run in progress stays as it
-- is. Statements of their own, so that each sees what was committed before the lock was given.
create function pitwheel.place_run(recurring_id bigint) returns void
language plpgsql
as $$
begin
    delete from pitwheel.job
    using pitwheel.recurring
    where recurring.id = place_run.recurring_id
      and not (recurring.enabled and recurring.planned)
      and job.recurring = place_run.recurring_id
      and job.holder is null;
    -- A job that is due already keeps its place in the queue. In another queue it must not appear in the past (cursor.rs).
    update pitwheel.job
    set run_at = case
            when greatest(job.run_at, recurring.next_run_at) <= clock_timestamp()
                and (job.queue, job.priority) = (recurring.queue, recurring.priority) then job.run_at
            else greatest(recurring.next_run_at, clock_timestamp())
        end,
        queue = recurring.queue, payload = recurring.payload, metadata = recurring.metadata,
        priority = recurring.priority, timeout_ms = recurring.timeout_ms,
        max_attempts = coalesce(recurring.max_attempts, 2147483647)
    from pitwheel.recurring
    where recurring.id = place_run.recurring_id
      and recurring.enabled
      and recurring.planned
      and job.recurring = place_run.recurring_id
      and job.holder is null;
    insert into pitwheel.job (
        recurring, kind, queue, payload, metadata, priority, max_attempts, timeout_ms, run_at, enqueued_at
    )
    select recurring.id, recurring.kind, recurring.queue, recurring.payload, recurring.metadata, recurring.priority,
        coalesce(recurring.max_attempts, 2147483647), recurring.timeout_ms,
        greatest(recurring.next_run_at, clock_timestamp()), clock_timestamp()
    from pitwheel.recurring
    where recurring.id = place_run.recurring_id
      and recurring.enabled
      and recurring.planned
    on conflict (recurring) where recurring is not null do nothing;
end
$$;

-- create_recurring: a recurring job, in the caller's own transaction, from any language. If the kind has one with this key, it is
-- enabled and gets this definition. A changed cadence is planned anew; otherwise the time of the next run stays, or is now if it
-- has passed.
-- The cadence is `every 15m`, `cron 30 2 * * 1-5 Europe/Zurich` or `adaptive 15m..24h`. Without a `first_run_at`, `every` and
-- `adaptive` begin at once, and the maintenance of any node plans `cron` within seconds. The library gives the times in
-- `first_run_at` and `first_anchor_at`, and for a changed cadence in `changed_run_at` and `changed_anchor_at`.
create function pitwheel.create_recurring(
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
    definition_ms bigint  := (extract(epoch from create_recurring.timeout) * 1000)::bigint;
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

-- enable_recurring: the recurring job runs again: at the time that was kept, or now if it has passed.
-- Zero rows: there is none with this id.
create function pitwheel.enable_recurring(recurring_id bigint)
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
        from pitwheel.recurring
        where recurring.id = enable_recurring.recurring_id;
end
$$;

-- disable_recurring: no run of the recurring job starts after this commits. A run in progress finishes. The time of the next run
-- is kept. Zero rows: there is none with this id.
create function pitwheel.disable_recurring(recurring_id bigint)
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

-- change_recurring: another cadence, planned anew; a run in progress uses the new plan when it ends. A disabled one stays disabled.
-- Zero rows: there is none with this id.
create function pitwheel.change_recurring(
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
    perform from pitwheel.recurring where recurring.id = change_recurring.recurring_id for no key update;
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

-- run_recurring: the next run is due now. `changed` is false if a run is in progress, or if it is disabled; then nothing is
-- changed. Zero rows: there is none with this id.
create function pitwheel.run_recurring(recurring_id bigint)
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

-- delete_recurring: deletes the recurring job. A run in progress finishes; nothing follows it. Zero rows: there is none with this id.
create function pitwheel.delete_recurring(recurring_id bigint)
returns table (kind text, key text)
language plpgsql
as $$
#variable_conflict use_column
begin
    perform pitwheel.disable_recurring(delete_recurring.recurring_id);
    return query
        delete from pitwheel.recurring
        where recurring.id = delete_recurring.recurring_id
        returning recurring.kind, recurring.key;
end
$$;

-- lock_recurring_of: locks the recurring job of a run, before the run itself is locked. Returns its id; null: the job is no run.
create function pitwheel.lock_recurring_of(job_id bigint) returns bigint
language plpgsql
as $$
declare
    run bigint;
begin
    select job.recurring into run
    from pitwheel.job
    where job.id >= lock_recurring_of.job_id
      and job.id <= lock_recurring_of.job_id
    order by job.id
    limit 1;
    if run is not null then
        perform from pitwheel.recurring where recurring.id = run for no key update;
    end if;
    return run;
end
$$;

-- finish: as before, and for a run: counts it, and leaves the planning of the next one to the maintenance, because SQL cannot read a
-- cadence. The recurring job is locked first.
create or replace function pitwheel.finish(
    job_id bigint, fence bigint, holder bigint, state text, error text, result json
) returns boolean
language plpgsql
as $$
declare
    run     bigint  := pitwheel.lock_recurring_of(finish.job_id);
    claimed tid;
    gone    pitwheel.job;
begin
    select job.ctid into claimed
    from pitwheel.job
    where job.id >= finish.job_id
      and job.id <= finish.job_id
      and job.fence = finish.fence
      and job.holder = coalesce(finish.holder, job.holder)
    order by job.id
    limit 1
    for update;
    if not found then
        return false;
    end if;
    delete from pitwheel.job where job.ctid = claimed returning job.* into gone;
    if finish.state is not null then
        insert into pitwheel.job_history (
            id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind,
            payload, worker, claimed_at, timeout_ms, key, metadata, note, errors, result, recurring
        )
        values (
            gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
            gone.priority, gone.crashes, finish.state, gone.queue, gone.kind, gone.payload, gone.holder, gone.claimed_at,
            gone.timeout_ms, gone.key, gone.metadata, gone.note, pitwheel.with_error(gone.errors, finish.error),
            finish.result, gone.recurring
        );
    end if;
    update pitwheel.recurring
    set runs = recurring.runs + 1,
        last_run_at = clock_timestamp(),
        consecutive_failures = case coalesce(finish.state, 'done')
            when 'done' then 0
            when 'dead' then recurring.consecutive_failures + 1
            else recurring.consecutive_failures
        end,
        last_error = case coalesce(finish.state, 'done')
            when 'done' then null
            else coalesce(finish.error::jsonb ->> 'message', recurring.last_error)
        end,
        -- A run before its planned time, because a person asked for it, leaves that time as it is.
        planned = not recurring.enabled or recurring.anchor_at > clock_timestamp(),
        next_run_at = case
            when recurring.anchor_at > clock_timestamp() then recurring.anchor_at
            when not recurring.enabled then recurring.next_run_at
        end,
        reason = 'to be planned'
    where recurring.id = run;
    perform pitwheel.place_run(run);
    return true;
end
$$;

-- fail: as before. A run fails like any other job, and its recurring job counts the failure. If that was disabled or deleted
-- meanwhile, the run is not retried.
create or replace function pitwheel.fail(
    job_id      bigint,
    fence       bigint,
    error       text,
    retry_after interval default null,
    holder      bigint   default null
) returns boolean
language plpgsql
as $$
declare
    run     bigint;
    claimed record;
    entry   text;
    retried timestamptz;
begin
    if fail.error is null then
        raise exception 'error is null: give a message' using errcode = '22023';
    end if;
    if fail.retry_after < interval '0' then
        raise exception 'retry_after % is negative', fail.retry_after using errcode = '22023';
    end if;
    run := pitwheel.lock_recurring_of(fail.job_id);
    select job.ctid as tid, job.attempt, job.max_attempts, job.cancel_requested_at is not null as cancelled,
        (select worker.name from pitwheel.worker where worker.id = job.holder) as worker,
        run is null or exists (select from pitwheel.recurring where recurring.id = run and recurring.enabled) as goes_on
    into claimed
    from pitwheel.job
    where job.id >= fail.job_id
      and job.id <= fail.job_id
      and job.fence = fail.fence
      and job.holder = coalesce(fail.holder, job.holder)
    order by job.id
    limit 1
    for no key update;
    if not found then
        return false;
    end if;
    entry := jsonb_build_object(
        'attempt', claimed.attempt, 'cause', 'error', 'message', left(fail.error, 4000), 'worker', claimed.worker
    )::text;
    if claimed.cancelled or not claimed.goes_on or claimed.attempt >= claimed.max_attempts then
        return pitwheel.finish(
            fail.job_id, fail.fence, fail.holder,
            case when claimed.cancelled or not claimed.goes_on then 'cancelled' else 'dead' end, entry, null
        );
    end if;
    update pitwheel.job
    set holder = null,
        claimed_at = null,
        progress = null,
        run_at = clock_timestamp() + coalesce(
            fail.retry_after,
            random() * least(interval '2 seconds' * 2 ^ least(job.attempt - 1, 20), interval '1 hour')
        ),
        errors = pitwheel.with_error(job.errors, entry)
    where job.ctid = claimed.tid
    returning job.run_at into retried;
    update pitwheel.recurring
    set consecutive_failures = recurring.consecutive_failures + 1,
        last_error = left(fail.error, 4000),
        next_run_at = retried,
        reason = 'it failed'
    where recurring.id = run;
    return true;
end
$$;
