-- Rows that older versions accepted, and limits that the library has and the SQL functions had not.
-- The functions below were repaired in 0019, but not the rows: they failed the ending of a job later, again at each attempt.

-- start_steps: as before, for steps that were stored with a delay or a time beyond the limits of job/limits.rs.
create or replace function pitwheel.start_steps(pipeline_id bigint, names text[]) returns text[]
language plpgsql
as $$
declare
    due text[];
begin
    with ready as (
        update pitwheel.step
        set state = 'live', job_id = nextval('pitwheel.job_id_seq')
        where step.pipeline = start_steps.pipeline_id
          and step.name = any (start_steps.names)
          and step.state = 'waiting'
          and step.waiting <= 0
        returning step.name, step.job_id, step.kind, step.payload, step.queue, step.run_at, step.delay_ms, step.priority,
            step.max_attempts, step.timeout_ms, step.metadata, step.lane, step.lane_pass
    ),
    started as (
        insert into pitwheel.job (
            id, pipeline, step, kind, payload, queue, run_at, enqueued_at, priority, max_attempts, timeout_ms, metadata, lane,
            lane_pass
        )
        select ready.job_id, start_steps.pipeline_id, ready.name, ready.kind, ready.payload, ready.queue,
            greatest(
                case when ready.run_at is not null then least(ready.run_at, clock_timestamp() + interval '36600 days') end,
                clock_timestamp() + least(ready.delay_ms, 3162240000000) * interval '1 millisecond'
            ), clock_timestamp(),
            ready.priority, ready.max_attempts, ready.timeout_ms, ready.metadata, ready.lane, ready.lane_pass
        from ready
        returning job.queue, job.run_at
    )
    select array_agg(distinct started.queue) filter (where started.run_at <= clock_timestamp()) into due
    from started;
    return due;
end
$$;

-- A job without a lane whose time is infinite is taken for a blocked one, and cannot be rescheduled.
update pitwheel.job set run_at = clock_timestamp() + interval '36600 days' where job.run_at = 'infinity' and job.lane is null;

-- checked_span: the time span, if it has at most 100 years, as in job/limits.rs. Otherwise raises.
create function pitwheel.checked_span(name text, span interval) returns interval
language plpgsql immutable strict
as $$
begin
    if extract(epoch from checked_span.span) > 3162240000 then
        raise exception '% % is longer than 100 years', checked_span.name, checked_span.span using errcode = '22023';
    end if;
    return checked_span.span;
end
$$;
grant execute on function pitwheel.checked_span to public;

-- fail: as before, and checks `retry_after`. A job without a lane lets no others pass, whatever is stored.
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
    perform pitwheel.checked_span('retry_after', fail.retry_after);
    run := pitwheel.lock_recurring_of(fail.job_id);
    select job.ctid as tid, job.attempt, job.max_attempts, job.cancel_requested_at is not null as cancelled,
        job.lane, job.lane_pass and job.lane is not null as lane_pass,
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
    retried := clock_timestamp() + coalesce(
        fail.retry_after,
        random() * least(interval '2 seconds' * 2 ^ least(claimed.attempt - 1, 20), interval '1 hour')
    );
    update pitwheel.job
    set holder = null,
        claimed_at = null,
        progress = null,
        run_at = case when claimed.lane_pass and retried > clock_timestamp() then 'infinity' else retried end,
        lane_at = case when claimed.lane_pass and retried > clock_timestamp() then retried end,
        lane_former = case when claimed.lane_pass then null else job.lane_former end,
        errors = pitwheel.with_error(job.errors, entry)
    where job.ctid = claimed.tid;
    if claimed.lane_pass then
        perform pitwheel.pass_lane(claimed.lane, fail.job_id);
    end if;
    update pitwheel.recurring
    set consecutive_failures = recurring.consecutive_failures + 1,
        last_error = left(fail.error, 4000),
        next_run_at = retried,
        reason = 'it failed'
    where recurring.id = run;
    return true;
end
$$;

-- enqueue: as before, and checks `timeout`.
create or replace function pitwheel.enqueue(
    kind         text,
    payload      json        default '{}',
    queue        text        default 'default',
    run_at       timestamptz default null,
    priority     integer     default 0,
    max_attempts integer     default 20,
    timeout      interval    default null,
    key          text        default null,
    metadata     json        default null,
    lane         json        default null,
    lane_pass    boolean     default false
) returns bigint
language plpgsql
as $$
#variable_conflict use_column
declare
    job_id bigint;
begin
    perform pitwheel.check_payload(enqueue.payload);
    if enqueue.metadata is not null then
        perform pitwheel.check_payload(enqueue.metadata);
    end if;
    if enqueue.kind is null or enqueue.kind !~ '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$' then
        raise exception 'kind `%` is not a name: 1 to 63 letters, digits and _ . : / -, starting with a letter or digit',
            enqueue.kind using errcode = '22023';
    end if;
    if enqueue.queue is null or enqueue.queue !~ '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$' then
        raise exception 'queue `%` is not a name: 1 to 63 letters, digits and _ . : / -, starting with a letter or digit',
            enqueue.queue using errcode = '22023';
    end if;
    if enqueue.key is not null and octet_length(enqueue.key) not between 1 and 512 then
        raise exception 'key has % bytes, it may have 1 to 512', octet_length(enqueue.key) using errcode = '22023';
    end if;
    if enqueue.priority is null or enqueue.priority not between -9 and 9 then
        raise exception 'priority % is out of range: -9 to 9, higher first', enqueue.priority using errcode = '22023';
    end if;
    if enqueue.max_attempts is null or enqueue.max_attempts not between 1 and 1000 then
        raise exception 'max_attempts % is out of range: 1 to 1000', enqueue.max_attempts using errcode = '22023';
    end if;
    if enqueue.timeout is not null and enqueue.timeout < interval '1 millisecond' then
        raise exception 'timeout % is not a time span above zero', enqueue.timeout using errcode = '22023';
    end if;
    loop
        insert into pitwheel.job (
            kind, payload, queue, run_at, enqueued_at, priority, max_attempts, timeout_ms, key, metadata, lane, lane_pass
        )
        values (
            enqueue.kind, enqueue.payload, enqueue.queue,
            greatest(pitwheel.checked_time('run_at', enqueue.run_at), clock_timestamp()), clock_timestamp(),
            enqueue.priority, enqueue.max_attempts,
            (extract(epoch from pitwheel.checked_span('timeout', enqueue.timeout)) * 1000)::bigint, enqueue.key, enqueue.metadata,
            pitwheel.lane_text(enqueue.lane::jsonb), case when enqueue.lane_pass and enqueue.lane is not null then true end
        )
        on conflict (kind, key) where key is not null do nothing
        returning id into job_id;
        exit when job_id is not null;
        -- A statement of its own, so that it sees the conflicting row; that job may be finished by now.
        select job.id into job_id
        from pitwheel.job
        where job.kind = enqueue.kind and job.key = enqueue.key;
        exit when job_id is not null;
    end loop;
    return job_id;
end
$$;

-- create_recurring and change_recurring: as before, and check `timeout`, `misfire` and `interval_ms`.
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

-- check_step: as before, and the timeout has a limit.
create or replace function pitwheel.check_step(
    name text, kind text, payload json, queue text, delay_ms bigint, priority integer, max_attempts integer, timeout interval,
    key text, metadata json, lane json
) returns void
language plpgsql
as $$
declare
    pattern constant text := '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$';
begin
    if coalesce(check_step.name, '') !~ pattern then
        raise exception 'step `%` is not a name: 1 to 63 letters, digits and _ . : / -, starting with a letter or digit',
            check_step.name using errcode = '22023';
    end if;
    if check_step.key is not null then
        raise exception 'step `%` has a key: its name in the pipeline identifies it', check_step.name using errcode = '22023';
    end if;
    if coalesce(check_step.kind, '') !~ pattern or coalesce(check_step.queue, 'default') !~ pattern then
        raise exception 'kind `%` or queue `%` of step `%` is not a name', check_step.kind, check_step.queue, check_step.name
            using errcode = '22023';
    end if;
    if coalesce(check_step.priority, 0) not between -9 and 9 or coalesce(check_step.max_attempts, 20) not between 1 and 1000
        or check_step.timeout < interval '1 millisecond' or extract(epoch from check_step.timeout) > 3162240000
        or check_step.delay_ms not between 0 and 3162240000000 then
        raise exception 'step `%`: priority is -9 to 9, max_attempts 1 to 1000, timeout 1 ms to 100 years, delay_ms 0 to 100 years',
            check_step.name using errcode = '22023';
    end if;
    if check_step.lane is not null then
        perform pitwheel.lane_text(check_step.lane::jsonb);
    end if;
    perform pitwheel.check_payload(coalesce(check_step.payload, '{}'));
    if check_step.metadata is not null then
        perform pitwheel.check_payload(check_step.metadata);
    end if;
end
$$;
