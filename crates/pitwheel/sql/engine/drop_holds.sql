-- drop_holds.sql: deletes these holds, as far as none of their jobs is held any more.
-- A hold stays while one of its jobs is held, for instance because a settle of it is in progress.
-- Uses hold_pkey and job_pkey, one probe per hold and per job: with `limit 1` the planner cannot join them with a scan of a whole
-- index.
-- A hold is never updated, so its ctid does not change. One that another transaction has locked stays, and is found again among the
-- unknown holds.
with empty as materialized (
    select hold.tid
    from unnest($1::bigint[]) as given(id)
    cross join lateral (
        select hold.ctid as tid, hold.worker, hold.job_ids
        from pitwheel.hold
        where hold.id = given.id
        limit 1
    ) as hold
    where not exists (
        select
        from unnest(hold.job_ids) as held(id)
        cross join lateral (
            select
            from pitwheel.job
            where job.id = held.id
              and job.holder = hold.worker
            limit 1
        ) as job
    )
)
delete from pitwheel.hold
where hold.ctid = any (array(
    select hold.ctid from pitwheel.hold where hold.ctid = any (array(select empty.tid from empty)) for update skip locked
))
