-- unknown_holds.sql: the holds of these workers that they do not know: a claim was committed, but its result was lost with the
-- connection. Uses hold_worker. For workers that have no claim in progress.
-- Zero rows: there are none.
-- Each job is found by one probe of job_pkey: with `limit 1` the planner cannot join the batch with a scan of the whole index.
-- The known holds are a hashed subplan: an array of them would be searched from its start for every hold, and no claim begins meanwhile.
select hold.id as hold, hold.worker as holder, job.id, job.fence
from pitwheel.hold
cross join lateral unnest(hold.job_ids) as held(id)
left join lateral (
    select job.id, job.fence
    from pitwheel.job
    where job.id = held.id
      and job.holder = hold.worker
    limit 1
) as job on true
where hold.worker = any($1::bigint[])
  and (hold.id in (select unnest($2::bigint[]))) is not true
