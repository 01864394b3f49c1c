-- Limits in the SQL functions: they refuse what the library refuses. Until now such a value was stored, and Postgres refused the
-- ending of a job later, when a step was to start or the job was put back.

-- checked_time: the time, if it is at most 100 years away, as in job/limits.rs. Otherwise, and if it is infinite, raises.
create function pitwheel.checked_time(name text, at timestamptz) returns timestamptz
language plpgsql strict
as $$
begin
    if checked_time.at = '-infinity' or checked_time.at > clock_timestamp() + interval '36600 days' then
        raise exception '% `%` is not a time, or is more than 100 years away', checked_time.name, checked_time.at
            using errcode = '22023';
    end if;
    return checked_time.at;
end
$$;
grant execute on function pitwheel.checked_time to public;

-- enqueue: as before, and checks `run_at`.
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
            (extract(epoch from enqueue.timeout) * 1000)::bigint, enqueue.key, enqueue.metadata,
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

-- create_recurring: as before, and checks its times; change_recurring checks those of a changed cadence.
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

-- change_recurring: as before, and checks its times.
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

-- check_step: as before, and the delay has the limit of job/limits.rs.
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
        or check_step.timeout < interval '1 millisecond' or check_step.delay_ms not between 0 and 3162240000000 then
        raise exception 'step `%`: priority is -9 to 9, max_attempts 1 to 1000, timeout at least 1 ms, delay_ms 0 to 100 years',
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

-- insert_pipeline: as before, and checks `run_at`. Without a lane, a step lets no others pass.
create or replace function pitwheel.insert_pipeline(definition json, out id bigint, out due text[])
language plpgsql
as $$
#variable_conflict use_column
declare
    number integer := json_array_length(definition -> 'steps');
begin
    insert into pitwheel.pipeline (name, on_failure, steps, open)
    values (definition ->> 'name', coalesce(definition ->> 'on_failure', 'stop'), number, number)
    returning pipeline.id into insert_pipeline.id;
    with given as materialized (
        select given.name, coalesce(given.after, '{}') as after, job.kind, coalesce(job.payload, '{}') as payload,
            coalesce(job.queue, 'default') as queue,
            pitwheel.checked_time(
                'run_at', coalesce(job.run_at, timestamptz 'epoch' + job.run_at_us * interval '1 microsecond')
            ) as run_at,
            coalesce(job.delay_ms, 0) as delay_ms, coalesce(job.priority, 0) as priority,
            coalesce(job.max_attempts, 20) as max_attempts,
            coalesce((extract(epoch from job.timeout) * 1000)::bigint, job.timeout_ms) as timeout_ms, job.metadata, given.n,
            job.lane::text as lane, case when job.lane_pass and job.lane is not null then true end as lane_pass
        from rows from (json_to_recordset(definition -> 'steps') as (name text, after text[], job json))
            with ordinality as given(name, after, job, n)
        cross join lateral json_to_record(given.job) as job(
            kind text, payload json, queue text, run_at timestamptz, run_at_us bigint, delay_ms bigint, priority integer,
            max_attempts integer, timeout interval, timeout_ms bigint, metadata json, lane json, lane_pass boolean
        )
    ),
    added as (
        insert into pitwheel.step (
            pipeline, n, name, parents, children, waiting, state, job_id, kind, payload, queue, run_at, delay_ms, priority,
            max_attempts, timeout_ms, metadata, lane, lane_pass
        )
        select insert_pipeline.id, given.n, given.name, given.after,
            array(select child.name from given as child where given.name = any (child.after) order by child.n),
            cardinality(given.after), case when cardinality(given.after) = 0 then 'live' else 'waiting' end,
            case when cardinality(given.after) = 0 then nextval('pitwheel.job_id_seq') end,
            given.kind, given.payload, given.queue, given.run_at, given.delay_ms, given.priority, given.max_attempts,
            given.timeout_ms, given.metadata, given.lane, given.lane_pass
        from given
        returning step.name, step.state, step.job_id, step.kind, step.payload, step.queue, step.run_at, step.delay_ms,
            step.priority, step.max_attempts, step.timeout_ms, step.metadata, step.lane, step.lane_pass
    ),
    started as (
        insert into pitwheel.job (
            id, pipeline, step, kind, payload, queue, run_at, enqueued_at, priority, max_attempts, timeout_ms, metadata, lane,
            lane_pass
        )
        select added.job_id, insert_pipeline.id, added.name, added.kind, added.payload, added.queue,
            greatest(added.run_at, clock_timestamp() + added.delay_ms * interval '1 millisecond'), clock_timestamp(),
            added.priority, added.max_attempts, added.timeout_ms, added.metadata, added.lane, added.lane_pass
        from added
        where added.state = 'live'
        returning job.queue, job.run_at
    )
    select array_agg(distinct started.queue) filter (where started.run_at <= clock_timestamp())
    into insert_pipeline.due
    from started;
end
$$;

-- add_step: as before, and checks `run_at`. Without a lane, a step lets no others pass.
create or replace function pitwheel.add_step(
    pipeline_id bigint, parent text, name text, kind text, payload json, queue text, run_at timestamptz, delay_ms bigint,
    priority integer, max_attempts integer, timeout_ms bigint, metadata json, lane text, lane_pass boolean
) returns void
language plpgsql
as $$
#variable_conflict use_column
declare
    found_row pitwheel.pipeline;
begin
    select pipeline.* into found_row from pitwheel.pipeline where pipeline.id = add_step.pipeline_id;
    if not found then
        return;
    end if;
    if found_row.steps >= 10000 then
        raise exception 'pipeline % has 10000 steps, which is the limit', add_step.pipeline_id using errcode = '22023';
    end if;
    insert into pitwheel.step (
        pipeline, n, name, parents, children, waiting, state, kind, payload, queue, run_at, delay_ms, priority, max_attempts,
        timeout_ms, metadata, lane, lane_pass, ended_at
    )
    values (
        add_step.pipeline_id, found_row.steps + 1, add_step.name, array[add_step.parent], '{}', 0,
        case when found_row.cancelled_at is null then 'waiting' else 'cancelled' end, add_step.kind, add_step.payload,
        add_step.queue, pitwheel.checked_time('run_at', add_step.run_at), add_step.delay_ms, add_step.priority,
        add_step.max_attempts, add_step.timeout_ms, add_step.metadata, add_step.lane,
        case when add_step.lane_pass and add_step.lane is not null then true end,
        case when found_row.cancelled_at is not null then clock_timestamp() end
    )
    on conflict (pipeline, name) do nothing;
    if not found then
        return;
    end if;
    update pitwheel.pipeline
    set steps = pipeline.steps + 1,
        open = pipeline.open + (pipeline.cancelled_at is null)::int,
        finished_at = case when pipeline.cancelled_at is not null then pipeline.finished_at end,
        failed = pipeline.failed + (pipeline.cancelled_at is not null)::int
    where pipeline.id = add_step.pipeline_id;
    perform pitwheel.start_steps(add_step.pipeline_id, array[add_step.name]);
end
$$;

-- Misfires of runs that are settled without a plan: the maintenance plans the next run, and needs to know when this one started.
alter table pitwheel.recurring add column started_at timestamptz; -- of the last run settled without a plan; null: there was none

-- finish: as before, and keeps the start of a run.
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
    if finish.state is not null or gone.pipeline is not null then
        insert into pitwheel.job_history (
            id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind,
            payload, worker, claimed_at, timeout_ms, key, metadata, note, errors, result, recurring, lane,
            lane_pass, pipeline, step
        )
        values (
            gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
            gone.priority, gone.crashes, coalesce(finish.state, 'done'), gone.queue, gone.kind, gone.payload, gone.holder,
            gone.claimed_at, gone.timeout_ms, gone.key, gone.metadata, gone.note,
            pitwheel.with_error(gone.errors, finish.error), finish.result, gone.recurring, gone.lane,
            gone.lane_pass, gone.pipeline, gone.step
        );
    end if;
    if gone.pipeline is not null then
        perform pitwheel.end_step(gone.pipeline, gone.step, gone.id, coalesce(finish.state, 'done'), finish.result);
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
        reason = 'to be planned',
        started_at = gone.claimed_at
    where recurring.id = run;
    perform pitwheel.place_run(run);
    return true;
end
$$;
