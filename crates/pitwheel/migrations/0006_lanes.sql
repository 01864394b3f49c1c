-- Lanes: jobs of one lane run one at a time, in the order of their ids.
--
-- Of the live jobs of a lane at most one has a time: its head, which waits or runs like any other job. The others are blocked: their
-- `run_at` is infinite, so no claim reaches them. When the head leaves the table, the trigger job_leaves_lane makes the next one the
-- head, in the same statement.
--
-- Neither an enqueue nor a settle locks the lane, because both can be part of a user's long transaction. So an enqueue may not see
-- that the head goes, and a settle may not see the job that comes. Each of them leaves a row in `lane_check`. Whoever
-- finds such a row after it was committed, sees both, and promotes the next job if there is no head (promote_checked).

alter table pitwheel.job
    add column lane        text collate "C", -- the canonical text of its JSON value; null: in no lane
    add column lane_at     timestamptz, -- of a blocked job: not before this time; null: as soon as it is the head
    add column lane_pass   boolean,     -- whether others of the lane may run while it waits for its time
    add column lane_former bigint,      -- of a head: the job that was current when it became the head
    add column lane_fence  bigint;      -- of a head: its fence when it became the head; null: 0
alter table pitwheel.job_history
    add column lane      text collate "C",
    add column lane_pass boolean;

-- The head of a lane, of which there is at most one, and the others behind it, in their order.
create unique index job_lane on pitwheel.job (lane, (case when run_at = 'infinity' then id else 0 end)) where lane is not null;
create index job_history_lane on pitwheel.job_history (lane, id) where lane is not null;

-- Lanes to look at. Rows are only added and deleted, and never waited for: the key has the id of the transaction
-- that added the row. The ids also give the order in which they are read, and below the oldest open transaction no row
-- appears any more.
create table pitwheel.lane_check (
    xid  xid8 not null,
    lane text collate "C" not null,
    primary key (xid, lane)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The last job that was claimed in a lane, for lanes whose head does not know it. See the view `current`.
create table pitwheel.lane (
    lane        text collate "C" primary key,
    current_job bigint      not null,
    changed_at  timestamptz not null
) with (fillfactor = 70);

-- lane_text: the canonical text of the JSON value that names a lane: a string, or an array of strings, integers, booleans and nulls.
-- Two values name the same lane if and only if their texts are equal; a null is equal to a null.
create function pitwheel.lane_text(lane jsonb) returns text
language plpgsql immutable strict
as $$
declare
    name  text    := lane::text;
    valid boolean := case jsonb_typeof(lane)
        when 'string' then true
        when 'array' then jsonb_array_length(lane) > 0 and not exists (
            select from jsonb_array_elements(lane) as part(value)
            where jsonb_typeof(part.value) in ('array', 'object')
               or jsonb_typeof(part.value) = 'number' and part.value::text !~ '^-?[0-9]{1,19}$'
        )
        else false
    end;
begin
    if not valid then
        raise exception 'lane `%` is neither a string nor an array of strings, integers, booleans and nulls', left(name, 80)
            using errcode = '22023';
    end if;
    if octet_length(name) > 512 then
        raise exception 'lane has % bytes, it may have at most 512: use a shorter name', octet_length(name)
            using errcode = '22023';
    end if;
    return name;
end
$$;

-- enter_lane: a new job of a lane is blocked. Its own time is kept in `lane_at`.
create function pitwheel.enter_lane() returns trigger
language plpgsql
as $$
begin
    new.lane := pitwheel.lane_text(new.lane::jsonb);
    new.lane_at := case when new.run_at > clock_timestamp() then new.run_at end;
    new.run_at := 'infinity';
    insert into pitwheel.lane_check (xid, lane) values (pg_current_xact_id(), new.lane) on conflict (xid, lane) do nothing;
    return new;
end
$$;
create trigger job_enters_lane before insert on pitwheel.job
for each row when (new.lane is not null) execute function pitwheel.enter_lane();

-- leave_lane: the head has left the table, and the next job becomes the head. A job that another transaction has locked is not
-- waited for and not passed over: then, and if none is visible, the lane is looked at later.
-- Uses job_lane: the order by its columns excludes every other index.
create function pitwheel.leave_lane() returns trigger
language plpgsql
as $$
declare
    former bigint := case when old.fence > coalesce(old.lane_fence, 0) then old.id else old.lane_former end;
begin
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
            where job.ctid = next.tid and job.run_at = 'infinity'
            for no key update skip locked
        ) as free
    ));
    if not found then
        if former is not null then
            insert into pitwheel.lane (lane, current_job, changed_at) values (old.lane, former, clock_timestamp())
            on conflict (lane) do update set current_job = excluded.current_job, changed_at = excluded.changed_at;
        end if;
        insert into pitwheel.lane_check (xid, lane) values (pg_current_xact_id(), old.lane) on conflict (xid, lane) do nothing;
    end if;
    return null;
end
$$;
create trigger job_leaves_lane after delete on pitwheel.job
for each row when (
    old.lane is not null and old.run_at < 'infinity'
    and current_setting('pitwheel.promotes_in_batch', true) is distinct from 'on' -- see done_in_lanes
)
execute function pitwheel.leave_lane();

-- done_in_lanes: claimed heads of lanes are done; those with `history` move there. As done.sql and complete.sql, and as the trigger
-- job_leaves_lane, but for all of them at once, which costs less than half. The setting keeps the trigger from doing the same; it is
-- undone if the statement fails. A row that another transaction has locked ends the statement after lock_timeout, as in done.sql; a
-- next job that has changed since is left to promote_checked. Rows not returned: the row has moved since, it is in no lane, it is a run of a recurring job, or that
-- claim no longer holds the job.
create function pitwheel.done_in_lanes(ids bigint[], fences bigint[], holders bigint[], ctids tid[], histories boolean[])
returns table (id bigint, fence bigint, holder bigint, written boolean)
language plpgsql
as $$
#variable_conflict use_column
begin
    perform set_config('pitwheel.promotes_in_batch', 'on', true);
    return query
    with gone as (
        delete from pitwheel.job
        where job.ctid = any (ctids)
          and ((job.id, job.fence, job.holder) in (
              select claim.id, claim.fence, claim.holder
              from unnest(ids, fences, holders) as claim(id, fence, holder)
          )) is true
          and job.recurring is null
          and job.lane is not null
        returning job.id, job.run_at, job.enqueued_at, job.fence, job.attempt, job.max_attempts, job.priority, job.crashes,
            job.queue, job.kind, job.payload, job.holder, job.claimed_at, job.timeout_ms, job.key, job.metadata, job.note,
            job.errors, job.lane, job.lane_pass
    ),
    kept as (
        insert into pitwheel.job_history (
            id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind,
            payload, worker, claimed_at, timeout_ms, key, metadata, note, errors, lane, lane_pass
        )
        select gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
            gone.priority, gone.crashes, 'done', gone.queue, gone.kind, gone.payload, gone.holder, gone.claimed_at,
            gone.timeout_ms, gone.key, gone.metadata, gone.note, gone.errors, gone.lane, gone.lane_pass
        from gone
        where (gone.id in (select asked.id from unnest(ids, histories) as asked(id, history) where asked.history)) is true
    ),
    next as materialized (
        select gone.id as former, job.tid
        from gone
        cross join lateral (
            select job.ctid as tid
            from pitwheel.job
            where job.lane = gone.lane
              and (case when job.run_at = 'infinity' then job.id else 0 end) > 0
              and (job.lane_pass and job.lane_at > clock_timestamp()) is not true
            order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
            limit 1
        ) as job
    ),
    promoted as (
        update pitwheel.job
        set run_at = greatest(job.lane_at, clock_timestamp()), lane_at = null, lane_former = next.former,
            lane_fence = nullif(job.fence, 0)
        from next
        where job.ctid = next.tid
        returning job.lane
    ),
    missed as materialized (
        select gone.id, gone.lane
        from gone
        where (gone.lane in (select promoted.lane from promoted)) is not true
    ),
    noted as (
        insert into pitwheel.lane as known (lane, current_job, changed_at)
        select missed.lane, missed.id, clock_timestamp() from missed
        on conflict (lane) do update set current_job = excluded.current_job, changed_at = excluded.changed_at
    ),
    checked as (
        insert into pitwheel.lane_check (xid, lane)
        select pg_current_xact_id(), missed.lane from missed
        on conflict (xid, lane) do nothing
    )
    select gone.id, gone.fence, gone.holder, true
    from gone;
    perform set_config('pitwheel.promotes_in_batch', 'off', true);
end
$$;

-- pass_lane: the job waits for its time, and others of its lane may run. It stays current until one of them is claimed.
create function pitwheel.pass_lane(lane text, job_id bigint) returns void
language sql volatile
begin atomic
    insert into pitwheel.lane (lane, current_job, changed_at) values (pass_lane.lane, pass_lane.job_id, clock_timestamp())
    on conflict (lane) do update set current_job = excluded.current_job, changed_at = excluded.changed_at;
    insert into pitwheel.lane_check (xid, lane) values (pg_current_xact_id(), pass_lane.lane) on conflict (xid, lane) do nothing;
end;

-- promote_lane: makes the next job of a lane its head, if it has none. A head that waits for its time and lets others pass is
-- replaced. The caller has locked the lane (try_lane). Every statement has a snapshot of its own, so it sees what was committed
-- before the lock was given. Returns the queue of the new head; null: nothing was changed.
create function pitwheel.promote_lane(lane text) returns text
language plpgsql
as $$
#variable_conflict use_column
declare
    head     record;
    next     tid;
    promoted text;
begin
    select job.ctid as tid,
        case when job.fence > coalesce(job.lane_fence, 0) then job.id else job.lane_former end as current_job,
        job.holder is null and job.lane_pass and job.run_at > clock_timestamp() as lets_pass
    into head
    from pitwheel.job
    where job.lane = promote_lane.lane
      and (case when job.run_at = 'infinity' then job.id else 0 end) = 0
    order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
    limit 1;
    if found and head.lets_pass is not true then
        return null;
    end if;
    select job.ctid into next
    from pitwheel.job
    where job.lane = promote_lane.lane
      and (case when job.run_at = 'infinity' then job.id else 0 end) > 0
      and (job.lane_pass and job.lane_at > clock_timestamp()) is not true
    order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
    limit 1;
    if next is null and head.tid is null then
        -- All of them wait for their time: the one whose time comes first.
        select job.ctid into next
        from (
            select job.ctid, job.lane_at, job.id
            from pitwheel.job
            where job.lane = promote_lane.lane
              and (case when job.run_at = 'infinity' then job.id else 0 end) > 0
            order by job.lane, (case when job.run_at = 'infinity' then job.id else 0 end)
            offset 0
        ) as job
        order by job.lane_at, job.id
        limit 1;
    end if;
    if next is null then
        return null;
    end if;
    if head.tid is not null then
        update pitwheel.job
        set lane_at = job.run_at, run_at = 'infinity', lane_former = null
        where job.ctid = any (array(
            select job.ctid
            from pitwheel.job
            where job.ctid = head.tid and job.holder is null and job.run_at < 'infinity'
            for no key update skip locked
        ));
        if found and head.current_job is not null then
            insert into pitwheel.lane as known (lane, current_job, changed_at)
            values (promote_lane.lane, head.current_job, clock_timestamp())
            on conflict (lane) do update set current_job = excluded.current_job, changed_at = excluded.changed_at;
        end if;
    end if;
    if found or head.tid is null then
        update pitwheel.job
        set run_at = greatest(job.lane_at, clock_timestamp()), lane_at = null, lane_fence = nullif(job.fence, 0)
        where job.ctid = any (array(
            select job.ctid
            from pitwheel.job
            where job.ctid = next and job.run_at = 'infinity'
            for no key update skip locked
        ))
        returning job.queue into promoted;
    end if;
    if promoted is null then
        -- Another transaction has locked it.
        insert into pitwheel.lane_check (xid, lane) values (pg_current_xact_id(), promote_lane.lane)
        on conflict (xid, lane) do nothing;
    end if;
    return promoted;
end
$$;

-- try_lane: locks a lane for promotion until the transaction ends. False: another transaction promotes it.
-- A lock per lane and transaction: callers promote at most 100 lanes in one, because the server's memory for locks is limited.
create function pitwheel.try_lane(lane text) returns boolean
language sql volatile
return pg_try_advisory_xact_lock(hashtextextended(lane, 7475));

-- promote_lanes: promotes the lanes into which the current transaction has enqueued. Only for short transactions: until it has
-- committed, no other session promotes these lanes.
create function pitwheel.promote_lanes(lanes text[]) returns void
language plpgsql
as $$
declare
    name text;
begin
    foreach name in array promote_lanes.lanes loop
        if pitwheel.try_lane(name) then
            delete from pitwheel.lane_check where lane_check.xid = pg_current_xact_id() and lane_check.lane = name;
            perform pitwheel.promote_lane(name);
        end if;
    end loop;
end
$$;

-- promote_checked: promotes lanes that have to be looked at, of up to `most` rows of the transactions from `first` on. A row is
-- deleted before the lane is looked at, so that no row is deleted that was committed later. Returns the queues of the new heads, how
-- many rows were found, and whether none is left.
create function pitwheel.promote_checked(first xid8, most integer, out queues text[], out checks integer, out complete boolean)
language plpgsql
as $$
declare
    checked record;
begin
    queues := '{}';
    checks := 0;
    complete := true;
    for checked in
        select page.lane, array_agg(page.xid) as xids, count(*) as rows
        from (
            select lane_check.lane, lane_check.xid
            from pitwheel.lane_check
            where lane_check.xid >= promote_checked.first
            order by lane_check.xid, lane_check.lane
            limit promote_checked.most
        ) as page
        group by page.lane
    loop
        checks := checks + checked.rows;
        if pitwheel.try_lane(checked.lane) then
            delete from pitwheel.lane_check
            where lane_check.xid = any (checked.xids) and lane_check.lane = checked.lane;
            queues := queues || pitwheel.promote_lane(checked.lane);
        else
            complete := false;
        end if;
    end loop;
    complete := complete and checks < promote_checked.most;
    queues := array_remove(queues, null);
end
$$;

-- The current job of each lane: the one that was claimed last. A claim of the head makes it current in the same statement, and a
-- claim that takes nothing changes nothing.
create view pitwheel.current as
select head.lane, case when head.fence > coalesce(head.lane_fence, 0) then head.id
    else coalesce(head.lane_former, lane.current_job) end as job_id
from pitwheel.job as head
left join pitwheel.lane on lane.lane = head.lane
where head.lane is not null
  and (case when head.run_at = 'infinity' then head.id else 0 end) = 0
  and (head.fence > coalesce(head.lane_fence, 0) or head.lane_former is not null or lane.current_job is not null)
union all
select lane.lane, lane.current_job
from pitwheel.lane
where not exists (
    select from pitwheel.job
    where job.lane = lane.lane
      and (case when job.run_at = 'infinity' then job.id else 0 end) = 0
);

-- enqueue: as before, and with a lane: a JSON string, or an array of strings, integers, booleans and nulls. With `lane_pass`, others
-- of the lane may run while the job waits for its time, as after a failure. A job of a lane runs at the earliest when a node
-- has found it after the commit, within about a second.
drop function pitwheel.enqueue(text, json, text, timestamptz, integer, integer, interval, text, json);
create function pitwheel.enqueue(
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
            greatest(enqueue.run_at, clock_timestamp()), clock_timestamp(),
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

-- fail: as before. A job of a lane that lets others pass is blocked until its time has come.
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
        job.lane, job.lane_pass,
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

-- A service that only enqueues needs no rights on these tables, nor to change jobs: both run with the rights of the schema's owner.
alter function pitwheel.enter_lane() security definer;
alter function pitwheel.enter_lane() set search_path = pg_catalog, pg_temp;
alter function pitwheel.promote_lanes(text[]) security definer;
alter function pitwheel.promote_lanes(text[]) set search_path = pg_catalog, pg_temp;

-- recover: a running job whose worker has not renewed its lease for `stale` waits again: due now, with all its attempts, and its former
-- holder can write nothing more. `outcome` is `recovered`; otherwise nothing was changed: `not_stale`, with the time since the
-- last renewal, `not_running` or `finished`. Zero rows: there is no such job.
-- The job is locked first, then the worker, so a settle or a renewal that comes first is seen.
create function pitwheel.recover(job_id bigint, stale interval, actor text)
returns table (outcome text, queue text, lane text, silent_seconds float8)
language plpgsql
as $$
#variable_conflict use_column
declare
    held   record;
    silent interval;
begin
    select job.ctid as tid, job.holder, job.queue, job.lane into held
    from pitwheel.job
    where job.id >= recover.job_id
      and job.id <= recover.job_id
    order by job.id
    limit 1
    for no key update;
    if not found then
        if exists (select from pitwheel.job_history where job_history.id = recover.job_id) then
            return query select 'finished', null::text, null::text, null::float8;
        end if;
        return;
    end if;
    if held.holder is null then
        return query select 'not_running', held.queue, held.lane, null::float8;
        return;
    end if;
    select clock_timestamp() - (worker.lease_until - worker.lease) into silent
    from pitwheel.worker
    where worker.id = held.holder
    for share;
    if silent < recover.stale then
        return query select 'not_stale', held.queue, held.lane, extract(epoch from silent)::float8;
        return;
    end if;
    update pitwheel.job
    set holder = null, claimed_at = null, progress = null, attempt = 0, run_at = clock_timestamp(), cancel_requested_at = null
    where job.ctid = held.tid;
    insert into pitwheel.audit (actor, action, job_ids) values (recover.actor, 'job.recover', array[recover.job_id]);
    return query select 'recovered', held.queue, held.lane, extract(epoch from silent)::float8;
end
$$;
