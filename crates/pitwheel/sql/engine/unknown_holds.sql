-- unknown_holds.sql: the holds of this worker that it does not know: a claim was committed, but its result was lost with the
-- connection. Uses hold_worker. For a worker that has no claim in progress.
-- Zero rows: there are none.
select hold.id as hold, job.id, job.fence
from pitwheel.hold
cross join lateral unnest(hold.job_ids) as held(id)
left join pitwheel.job on job.id = held.id and job.holder = hold.worker
where hold.worker = $1
  and hold.id <> all ($2::bigint[])
