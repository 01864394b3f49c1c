-- lock_claim.sql: waits for the claimed job's row, in the caller's own transaction; finish.sql does not.
select from pitwheel.job
where job.id = $1
  and job.fence = $2
  and job.holder is not null
for update
