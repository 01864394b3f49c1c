-- Pipelines: jobs that belong together. A step becomes a job when the steps that it comes after have ended.
--
-- Whoever changes steps locks the row in `pipeline` first. So the steps of one pipeline change one after the other, and each change
-- sees what was committed before. Only the settle of a step begins with the job, and it waits for neither row.

create table pitwheel.pipeline (
    id           bigint generated always as identity primary key,
    created_at   timestamptz not null default clock_timestamp(),
    steps        integer     not null,
    open         integer     not null,           -- steps that are waiting or live
    failed       integer     not null default 0, -- steps that are dead or cancelled
    name         text        not null,
    on_failure   text        not null constraint pipeline_on_failure check (on_failure in ('stop', 'go_on')),
    cancelled_at timestamptz,
    finished_at  timestamptz                     -- null while steps are open
) with (
    -- The end of a step that is not the last changes no indexed column. With room in the page it is a HOT update.
    fillfactor = 60,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000
);
create index pipeline_running on pitwheel.pipeline (id) where finished_at is null;
create index pipeline_finished on pitwheel.pipeline (finished_at, id) where finished_at is not null;

-- The steps: their order, their state, and what their jobs are. Only a live step has a row in `job`.
create table pitwheel.step (
    pipeline     bigint            not null,
    delay_ms     bigint            not null, -- how long its job waits from the end of the last step before it
    n            integer           not null, -- its place in the list, from 1
    waiting      integer           not null, -- how many of its parents must still end
    max_attempts integer           not null,
    priority     pitwheel.priority not null,
    state        text              not null
        constraint step_state check (state in ('waiting', 'live', 'done', 'dead', 'cancelled', 'skipped')),
    name         text collate "C"  not null,
    kind         text              not null,
    queue        text              not null,
    parents      text[]            not null,
    children     text[]            not null,
    payload      json              not null,
    run_at       timestamptz,
    timeout_ms   bigint,
    metadata     json,
    lane         text,             -- the lane of its job
    lane_pass    boolean,
    job_id       bigint,           -- its last job
    ended_at     timestamptz,
    result       json,
    constraint step_pkey primary key (pipeline, name)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000
);

-- The step that a job is.
alter table pitwheel.job add column pipeline bigint, add column step text collate "C";
alter table pitwheel.job_history add column pipeline bigint, add column step text collate "C";
-- A step has at most one live job.
create unique index job_step on pitwheel.job (pipeline, step) where pipeline is not null;

create function pitwheel.pipeline_state(pipeline pitwheel.pipeline) returns text
language sql immutable
return case
    when (pipeline).open > 0 then 'running'
    when (pipeline).cancelled_at is not null then 'cancelled'
    when (pipeline).failed > 0 then 'failed'
    else 'done'
end;

-- What a claim returns for a step: pipeline, name, and of each parent the name, state and result. One value, so that a claim reads
-- nothing for jobs that are no steps. Results are left out beyond 1 MiB: an assignment to a remote worker has at most 4 MiB.
create view pitwheel.step_context as
select step.pipeline, step.name, json_build_array(step.pipeline, step.name, (
    select coalesce(json_agg(
        json_build_array(
            parent.name, parent.state, case when parent.bytes <= 1048576 then parent.result::text end,
            parent.result is not null and parent.bytes > 1048576
        )
        order by parent.n
    ), '[]')
    from (
        select parent.name, parent.state, parent.result, parent.n,
            sum(octet_length(parent.result::text)) over (order by parent.n) as bytes
        from pitwheel.step as parent
        where parent.pipeline = step.pipeline
          and parent.name = any (step.parents)
    ) as parent
))::text as context
from pitwheel.step;

-- insert_pipeline: adds a pipeline that was checked, and the jobs of its first steps. `due` is the queues in which one of them is due.
create function pitwheel.insert_pipeline(definition json, out id bigint, out due text[])
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
            coalesce(job.run_at, timestamptz 'epoch' + job.run_at_us * interval '1 microsecond') as run_at,
            coalesce(job.delay_ms, 0) as delay_ms, coalesce(job.priority, 0) as priority,
            coalesce(job.max_attempts, 20) as max_attempts,
            coalesce((extract(epoch from job.timeout) * 1000)::bigint, job.timeout_ms) as timeout_ms, job.metadata, given.n,
            job.lane::text as lane, nullif(job.lane_pass, false) as lane_pass
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

-- check_step: raises unless a step with this name and job can be added. A null means the default.
create function pitwheel.check_step(
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
        or check_step.timeout < interval '1 millisecond' or check_step.delay_ms < 0 then
        raise exception 'step `%`: priority is -9 to 9, max_attempts 1 to 1000, timeout at least 1 ms, delay_ms at least 0',
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

-- create_pipeline: a pipeline, in the caller's own transaction, from any language. Returns its id.
-- The definition is `{"name": …, "on_failure": "stop" or "go_on", "steps": [{"name": …, "after": [names], "job": {…}}]}`. The fields
-- of a job are the parameters of pitwheel.enqueue, without `key`, and `delay_ms` and `timeout_ms`. A step comes after steps that
-- stand before it in the list.
create function pitwheel.create_pipeline(definition json) returns bigint
language plpgsql
as $$
declare
    steps  json   := definition -> 'steps';
    before text[] := '{}';
    step   record;
begin
    if coalesce(definition ->> 'name', '') !~ '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}$' then
        raise exception 'pipeline `%` is not a name: 1 to 63 letters, digits and _ . : / -, starting with a letter or digit',
            definition ->> 'name' using errcode = '22023';
    end if;
    if coalesce(definition ->> 'on_failure', 'stop') not in ('stop', 'go_on') then
        raise exception 'on_failure `%` is not `stop` or `go_on`', definition ->> 'on_failure' using errcode = '22023';
    end if;
    if json_typeof(steps) is distinct from 'array' or json_array_length(steps) not between 1 and 1000 then
        raise exception 'a pipeline has a list of 1 to 1000 steps' using errcode = '22023';
    end if;
    if octet_length(definition::text) > 4194304 then
        raise exception 'the pipeline has % bytes, the limit is 4194304: store large payloads elsewhere',
            octet_length(definition::text) using errcode = '22023';
    end if;
    for step in
        select given.name, given.after, job.kind, job.payload, job.queue, job.delay_ms, job.priority, job.max_attempts,
            coalesce(job.timeout, job.timeout_ms * interval '1 millisecond') as timeout, job.metadata, job.key, job.lane
        from json_to_recordset(steps) as given(name text, after text[], job json)
        left join lateral json_to_record(given.job) as job(
            kind text, payload json, queue text, delay_ms bigint, priority integer, max_attempts integer, timeout interval,
            timeout_ms bigint, metadata json, key text, lane json
        ) on true
    loop
        perform pitwheel.check_step(
            step.name, step.kind, step.payload, step.queue, step.delay_ms, step.priority, step.max_attempts, step.timeout,
            step.key, step.metadata, step.lane
        );
        if step.name = any (before) then
            raise exception 'step `%` stands in the list twice', step.name using errcode = '22023';
        end if;
        if not coalesce(step.after, '{}') <@ before then
            raise exception 'step `%` comes after a step that does not stand before it in the list', step.name
                using errcode = '22023';
        end if;
        if cardinality(step.after) > 100
            or cardinality(step.after) <> (select count(distinct parent) from unnest(step.after) as parent) then
            raise exception 'step `%` comes after more than 100 steps, or after one of them twice', step.name
                using errcode = '22023';
        end if;
        before := before || step.name;
    end loop;
    return (select new.id from pitwheel.insert_pipeline(definition) as new);
end
$$;

-- start_steps: steps of a pipeline, which the caller has locked, become jobs if nothing is left that they wait for. Returns the
-- queues in which one of them is due.
create function pitwheel.start_steps(pipeline_id bigint, names text[]) returns text[]
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
            greatest(ready.run_at, clock_timestamp() + ready.delay_ms * interval '1 millisecond'), clock_timestamp(),
            ready.priority, ready.max_attempts, ready.timeout_ms, ready.metadata, ready.lane, ready.lane_pass
        from ready
        returning job.queue, job.run_at
    )
    select array_agg(distinct started.queue) filter (where started.run_at <= clock_timestamp()) into due
    from started;
    return due;
end
$$;

-- skip_steps: these steps of a pipeline, which the caller has locked, and all steps below them will not run. Returns how many.
create function pitwheel.skip_steps(pipeline_id bigint, names text[]) returns integer
language plpgsql
as $$
declare
    skipped integer;
begin
    with recursive below as (
        select name collate "C" as name from unnest(skip_steps.names) as name
        union
        select child.name collate "C"
        from below
        cross join lateral (
            select unnest(step.children) as name
            from pitwheel.step
            where step.pipeline = skip_steps.pipeline_id
              and step.name = below.name
        ) as child
    )
    update pitwheel.step
    set state = 'skipped', ended_at = clock_timestamp()
    where step.pipeline = skip_steps.pipeline_id
      and step.name = any (array(select below.name from below))
      and step.state = 'waiting';
    get diagnostics skipped = row_count;
    return skipped;
end
$$;

-- end_step: a live step has ended, with the job that it was: its children become jobs, or are skipped. The caller has locked the
-- pipeline. Returns the queues in which a new job is due. Nothing happens if the step is no longer this job.
create function pitwheel.end_step(pipeline_id bigint, step_name text, job_id bigint, state text, result json) returns text[]
language plpgsql
as $$
#variable_conflict use_column
declare
    below   text[];
    due     text[];
    skipped integer := 0;
begin
    update pitwheel.step
    set state = end_step.state, result = end_step.result, ended_at = clock_timestamp()
    where step.pipeline = end_step.pipeline_id
      and step.name = end_step.step_name
      and step.state = 'live'
      and step.job_id = end_step.job_id
    returning step.children into below;
    if not found then
        return null;
    end if;
    if cardinality(below) > 0 then
        if end_step.state <> 'done' and exists (
            select from pitwheel.pipeline where pipeline.id = end_step.pipeline_id and pipeline.on_failure = 'stop'
        ) then
            skipped := pitwheel.skip_steps(end_step.pipeline_id, below);
        else
            update pitwheel.step
            set waiting = step.waiting - 1
            where step.pipeline = end_step.pipeline_id
              and step.name = any (below)
              and step.state = 'waiting';
            due := pitwheel.start_steps(end_step.pipeline_id, below);
        end if;
    end if;
    update pitwheel.pipeline
    set open = pipeline.open - 1 - skipped,
        failed = pipeline.failed + (end_step.state <> 'done')::int,
        finished_at = case when pipeline.open = 1 + skipped then clock_timestamp() end
    where pipeline.id = end_step.pipeline_id;
    return due;
end
$$;

-- add_step: one more step of a pipeline, which the caller has locked, after a step that ends now. If it has one of this name, nothing
-- changes. In a cancelled pipeline it is cancelled at once.
create function pitwheel.add_step(
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
        add_step.queue, add_step.run_at, add_step.delay_ms, add_step.priority, add_step.max_attempts, add_step.timeout_ms,
        add_step.metadata, add_step.lane, add_step.lane_pass,
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

-- recount_pipeline: what each waiting step waits for, and how many steps are open and failed, after steps were set back. The caller
-- has locked the pipeline.
create function pitwheel.recount_pipeline(pipeline_id bigint) returns void
language plpgsql
as $$
begin
    update pitwheel.step
    set waiting = (
        select count(*)
        from pitwheel.step as parent
        where parent.pipeline = recount_pipeline.pipeline_id
          and parent.name = any (step.parents)
          and (parent.state in ('waiting', 'live') or parent.state <> 'done' and pipeline.on_failure = 'stop')
    )
    from pitwheel.pipeline
    where pipeline.id = recount_pipeline.pipeline_id
      and step.pipeline = recount_pipeline.pipeline_id
      and step.state = 'waiting';
    update pitwheel.pipeline
    set (open, failed, finished_at) = (
        select count(*) filter (where step.state in ('waiting', 'live')),
            count(*) filter (where step.state in ('dead', 'cancelled')),
            case when count(*) filter (where step.state in ('waiting', 'live')) = 0
                then coalesce(pipeline.finished_at, clock_timestamp()) end
        from pitwheel.step
        where step.pipeline = recount_pipeline.pipeline_id
    )
    where pipeline.id = recount_pipeline.pipeline_id;
end
$$;

-- cancel_pipeline: its steps that wait will not run. Jobs of it that wait are cancelled at once, and the cancel of those that run is
-- requested. `changed` is false if it had ended. Zero rows: there is none with this id.
create function pitwheel.cancel_pipeline(pipeline_id bigint) returns table (changed boolean, requested boolean)
language plpgsql
as $$
#variable_conflict use_column
declare
    found_row pitwheel.pipeline;
begin
    select pipeline.* into found_row
    from pitwheel.pipeline
    where pipeline.id = cancel_pipeline.pipeline_id
    for no key update;
    if not found then
        return;
    end if;
    if found_row.open = 0 then
        return query select false, false;
        return;
    end if;
    update pitwheel.pipeline
    set cancelled_at = coalesce(pipeline.cancelled_at, clock_timestamp())
    where pipeline.id = found_row.id;
    update pitwheel.step
    set state = 'cancelled', ended_at = clock_timestamp()
    where step.pipeline = found_row.id and step.state = 'waiting';
    -- Locked, so that no claim takes one before it is cancelled.
    perform from pitwheel.job where job.pipeline = found_row.id order by job.id for no key update;
    with gone as (
        delete from pitwheel.job
        where job.pipeline = found_row.id and job.holder is null
        returning job.*
    ),
    kept as (
        insert into pitwheel.job_history (
            id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind, payload,
            timeout_ms, key, metadata, note, errors, lane, lane_pass, pipeline, step
        )
        select gone.id, clock_timestamp(),
            case when gone.run_at = 'infinity' then coalesce(gone.lane_at, gone.enqueued_at) else gone.run_at end, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
            gone.priority, gone.crashes, 'cancelled', gone.queue, gone.kind, gone.payload, gone.timeout_ms, gone.key,
            gone.metadata, gone.note, gone.errors, gone.lane, gone.lane_pass, gone.pipeline, gone.step
        from gone
    )
    update pitwheel.step
    set state = 'cancelled', ended_at = clock_timestamp()
    where step.pipeline = found_row.id
      and step.name = any (array(select gone.step from gone))
      and step.state = 'live';
    update pitwheel.job
    set cancel_requested_at = coalesce(job.cancel_requested_at, clock_timestamp())
    where job.pipeline = found_row.id;
    return query select true, found;
    perform pitwheel.recount_pipeline(found_row.id);
end
$$;

-- retry_pipeline: its steps that are dead, cancelled or skipped run again, each after its parents. `changed` is false if there are
-- none. Zero rows: there is no pipeline with this id.
create function pitwheel.retry_pipeline(pipeline_id bigint) returns table (changed boolean, due text[])
language plpgsql
as $$
#variable_conflict use_column
begin
    perform from pitwheel.pipeline where pipeline.id = retry_pipeline.pipeline_id for no key update;
    if not found then
        return;
    end if;
    update pitwheel.step
    set state = 'waiting', result = null, ended_at = null
    where step.pipeline = retry_pipeline.pipeline_id
      and step.state in ('dead', 'cancelled', 'skipped');
    if not found then
        return query select false, null::text[];
        return;
    end if;
    update pitwheel.pipeline set cancelled_at = null where pipeline.id = retry_pipeline.pipeline_id;
    perform pitwheel.recount_pipeline(retry_pipeline.pipeline_id);
    return query select true, pitwheel.start_steps(retry_pipeline.pipeline_id, array(
        select step.name
        from pitwheel.step
        where step.pipeline = retry_pipeline.pipeline_id and step.state = 'waiting' and step.waiting = 0
    ));
end
$$;

-- retry_step: a dead or cancelled step is live again with the same job, which the caller enqueues again, and what was skipped because
-- of it waits again. The caller has locked the pipeline. False: the step is no longer this job, or not dead or cancelled.
create function pitwheel.retry_step(pipeline_id bigint, step_name text, job_id bigint) returns boolean
language plpgsql
as $$
#variable_conflict use_column
begin
    update pitwheel.step
    set state = 'live', result = null, ended_at = null
    where step.pipeline = retry_step.pipeline_id
      and step.name = retry_step.step_name
      and step.job_id = retry_step.job_id
      and step.state in ('dead', 'cancelled');
    if not found then
        return false;
    end if;
    update pitwheel.step
    set state = 'waiting', ended_at = null
    where step.pipeline = retry_step.pipeline_id and step.state = 'skipped';
    -- Steps below another one that failed stay skipped. Under `go_on` none was skipped.
    perform pitwheel.skip_steps(retry_step.pipeline_id, array(
        select unnest(step.children)
        from pitwheel.step
        join pitwheel.pipeline on pipeline.id = step.pipeline and pipeline.on_failure = 'stop'
        where step.pipeline = retry_step.pipeline_id and step.state in ('dead', 'cancelled')
    ));
    perform pitwheel.recount_pipeline(retry_step.pipeline_id);
    return true;
end
$$;

-- repair_pipeline: ends the live steps of a pipeline whose jobs are gone: a person has deleted a job by hand, or a program of an older
-- version has finished it. A step is then what the history says of its job, or cancelled. Returns how many there were. A pipeline
-- that another transaction has locked is left for later.
create function pitwheel.repair_pipeline(pipeline_id bigint) returns integer
language plpgsql
as $$
declare
    gone     record;
    repaired integer := 0;
begin
    perform from pitwheel.pipeline where pipeline.id = repair_pipeline.pipeline_id for no key update skip locked;
    if not found then
        return 0;
    end if;
    for gone in
        select step.name, step.job_id
        from pitwheel.step
        where step.pipeline = repair_pipeline.pipeline_id
          and step.state = 'live'
          and not exists (select from pitwheel.job where job.pipeline = step.pipeline and job.step = step.name)
        order by step.n
    loop
        perform pitwheel.end_step(
            repair_pipeline.pipeline_id, gone.name, gone.job_id, coalesce(history.state, 'cancelled'), history.result
        )
        from (select) as one
        left join lateral (
            select job_history.state, job_history.result
            from pitwheel.job_history
            where job_history.id = gone.job_id
            limit 1
        ) as history on true;
        repaired := repaired + 1;
    end loop;
    return repaired;
end
$$;

-- lock_recurring_of: as before, and locks the pipeline of a step.
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
    end if;
    if step_of is not null then
        perform from pitwheel.pipeline where pipeline.id = step_of for no key update;
    end if;
    return run;
end
$$;

-- lock_recurring_of_jobs: the same for several jobs. Always true, so that a statement can ask for it before it locks the jobs.
create function pitwheel.lock_recurring_of_jobs(job_ids bigint[]) returns boolean
language plpgsql
as $$
declare
    run_of  bigint[];
    step_of bigint[];
begin
    select array_agg(job.recurring), array_agg(job.pipeline) into run_of, step_of
    from unnest(lock_recurring_of_jobs.job_ids) as asked(id)
    cross join lateral (
        select job.recurring, job.pipeline
        from pitwheel.job
        where job.id >= asked.id
          and job.id <= asked.id
        order by job.id
        limit 1
    ) as job;
    perform from pitwheel.recurring where recurring.id = any (run_of) order by recurring.id for no key update;
    perform from pitwheel.pipeline where pipeline.id = any (step_of) order by pipeline.id for no key update;
    return true;
end
$$;

-- finish: as before, and for a step: it always moves to the history, and its pipeline goes on.
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
        reason = 'to be planned'
    where recurring.id = run;
    perform pitwheel.place_run(run);
    return true;
end
$$;

-- complete: as before. A follower with `step` becomes a step of the pipeline of the job, if the job is a step.
create or replace function pitwheel.complete(
    job_id       bigint,
    fence        bigint,
    result       json    default null,
    followers    json    default '[]',
    keep_history boolean default true,
    holder       bigint  default null
) returns boolean
language plpgsql
as $$
declare
    state       text := case when complete.keep_history or complete.result is not null then 'done' end;
    pipeline_id bigint;
    parent      text;
    follower    record;
begin
    if complete.result is not null then
        perform pitwheel.check_payload(complete.result);
    end if;
    if json_typeof(complete.followers) is distinct from 'array' then
        raise exception 'followers is not a JSON array: give a list of jobs' using errcode = '22023';
    end if;
    if json_array_length(complete.followers) > 100 then
        raise exception '% jobs follow from one, the limit is 100: enqueue one that enqueues the others',
            json_array_length(complete.followers) using errcode = '22023';
    end if;
    if octet_length(complete.followers::text) > 3145728 then
        raise exception 'the followers have % bytes, the limit is 3145728: store large payloads elsewhere and enqueue references',
            octet_length(complete.followers::text) using errcode = '22023';
    end if;
    select job.pipeline, job.step into pipeline_id, parent
    from pitwheel.job
    where job.id >= complete.job_id
      and job.id <= complete.job_id
    order by job.id
    limit 1;
    if not pitwheel.finish(complete.job_id, complete.fence, complete.holder, state, null, complete.result) then
        return false;
    end if;
    for follower in
        select job.kind, job.payload, job.queue, job.run_at, job.priority, job.max_attempts, job.timeout, job.key, job.metadata,
            job.lane, job.lane_pass, job.step
        from json_to_recordset(complete.followers) as job(
            kind text, payload json, queue text, run_at timestamptz, priority integer, max_attempts integer,
            timeout interval, key text, metadata json, lane json, lane_pass boolean, step text
        )
    loop
        if follower.step is not null and pipeline_id is not null then
            perform pitwheel.check_step(
                follower.step, follower.kind, follower.payload, follower.queue, 0, follower.priority, follower.max_attempts,
                follower.timeout, follower.key, follower.metadata, follower.lane
            );
            perform pitwheel.add_step(
                pipeline_id, parent, follower.step, follower.kind, coalesce(follower.payload, '{}'),
                coalesce(follower.queue, 'default'), follower.run_at, 0, coalesce(follower.priority, 0),
                coalesce(follower.max_attempts, 20), (extract(epoch from follower.timeout) * 1000)::bigint, follower.metadata,
                follower.lane::text, nullif(follower.lane_pass, false)
            );
        else
            perform pitwheel.enqueue(
                follower.kind, coalesce(follower.payload, '{}'), coalesce(follower.queue, 'default'), follower.run_at,
                coalesce(follower.priority, 0), coalesce(follower.max_attempts, 20), follower.timeout, follower.key,
                follower.metadata, follower.lane, coalesce(follower.lane_pass, false)
            );
        end if;
    end loop;
    return true;
end
$$;
