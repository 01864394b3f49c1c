-- unknown_holds.sql: what this worker holds beside the holds it knows: a claim was committed, but its answer was lost with
-- the connection. Leans on hold_worker. For a worker that has no claim under way.
-- Zero rows: nothing is held unknowingly.
select hold.id as hold, job.id, job.fence
from pitwheel.hold
cross join lateral unnest(hold.job_ids) as held(id)
left join pitwheel.job on job.id = held.id and job.holder = hold.worker
where hold.worker = $1
  and hold.id <> all ($2::bigint[])
