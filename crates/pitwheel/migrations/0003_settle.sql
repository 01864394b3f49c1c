-- Settling a job in the caller's own transaction, from any language.

-- finish: moves a claimed job to the history, or only deletes it when `state` is null. Returns whether the claim held it.
-- Used by complete and fail below; the engine itself settles in batches.
-- The first statement waits for the row, and the second sees it as it is then. A job is found by a range of one id, in the
-- order of ids: only job_pkey has that order. With `=` a plan could read all of job_due, which ends with the id, once the table
-- was analyzed without rows.
create function pitwheel.finish(job_id bigint, fence bigint, holder bigint, state text, error text, result json)
returns boolean
language sql volatile
begin atomic
    select from pitwheel.job
    where job.id >= finish.job_id
      and job.id <= finish.job_id
      and job.fence = finish.fence
      and job.holder = coalesce(finish.holder, job.holder)
    order by job.id
    limit 1
    for update;

    with gone as (
        delete from pitwheel.job
        where job.ctid = any (array(
            select job.ctid
            from pitwheel.job
            where job.id >= finish.job_id
              and job.id <= finish.job_id
              and job.fence = finish.fence
              and job.holder = coalesce(finish.holder, job.holder)
            order by job.id
            limit 1
        ))
        returning job.id, job.run_at, job.enqueued_at, job.fence, job.attempt, job.max_attempts, job.priority, job.crashes,
            job.queue, job.kind, job.payload, job.holder, job.claimed_at, job.timeout_ms, job.key, job.metadata, job.note,
            job.errors
    ),
    kept as (
        insert into pitwheel.job_history (
            id, finished_at, run_at, enqueued_at, fence, attempt, max_attempts, priority, crashes, state, queue, kind,
            payload, worker, claimed_at, timeout_ms, key, metadata, note, errors, result
        )
        select gone.id, clock_timestamp(), gone.run_at, gone.enqueued_at, gone.fence, gone.attempt, gone.max_attempts,
            gone.priority, gone.crashes, finish.state, gone.queue, gone.kind, gone.payload, gone.holder, gone.claimed_at,
            gone.timeout_ms, gone.key, gone.metadata, gone.note, pitwheel.with_error(gone.errors, finish.error),
            finish.result
        from gone
        where finish.state is not null
    )
    select exists (select from gone);
end;

-- complete: the claimed job is done, in the caller's own transaction. Returns whether it was written; false: the claim is lost,
-- so roll back.
-- `followers` is a JSON array of at most 100 jobs and 3 MiB that are enqueued with it; the fields of each are the parameters of
-- pitwheel.enqueue. Without `keep_history` a job without a result leaves no row in the history.
-- `holder` is the id of the worker that claimed the job; null: only the fence is compared, which another claim can have too after
-- a failover that lost this one.
create function pitwheel.complete(
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
    state    text := case when complete.keep_history or complete.result is not null then 'done' end;
    follower record;
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
    if not pitwheel.finish(complete.job_id, complete.fence, complete.holder, state, null, complete.result) then
        return false;
    end if;
    for follower in
        select job.kind, job.payload, job.queue, job.run_at, job.priority, job.max_attempts, job.timeout, job.key, job.metadata
        from json_to_recordset(complete.followers) as job(
            kind text, payload json, queue text, run_at timestamptz, priority integer, max_attempts integer,
            timeout interval, key text, metadata json
        )
    loop
        perform pitwheel.enqueue(
            follower.kind, coalesce(follower.payload, '{}'), coalesce(follower.queue, 'default'), follower.run_at,
            coalesce(follower.priority, 0), coalesce(follower.max_attempts, 20), follower.timeout, follower.key,
            follower.metadata
        );
    end loop;
    return true;
end
$$;

-- fail: the attempt failed, in the caller's own transaction. Returns whether it was written; false: the claim is lost, so roll
-- back. The job is retried after `retry_after`, or after the usual backoff (a random part of 2 s doubled per attempt, at most an
-- hour). It is buried instead if this was its last attempt, and cancelled if a cancel was requested. `holder` is as in complete.
create function pitwheel.fail(
    job_id      bigint,
    fence       bigint,
    error       text,
    retry_after interval default null,
    holder      bigint   default null
) returns boolean
language plpgsql
as $$
declare
    claimed record;
    entry   text;
begin
    if fail.error is null then
        raise exception 'error is null: give a message' using errcode = '22023';
    end if;
    if fail.retry_after < interval '0' then
        raise exception 'retry_after % is negative', fail.retry_after using errcode = '22023';
    end if;
    select job.ctid as tid, job.attempt, job.max_attempts, job.cancel_requested_at is not null as cancelled,
        (select worker.name from pitwheel.worker where worker.id = job.holder) as worker
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
    if claimed.cancelled or claimed.attempt >= claimed.max_attempts then
        return pitwheel.finish(
            fail.job_id, fail.fence, fail.holder, case when claimed.cancelled then 'cancelled' else 'dead' end, entry, null
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
    where job.ctid = claimed.tid;
    return true;
end
$$;
