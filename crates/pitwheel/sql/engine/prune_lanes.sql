-- prune_lanes.sql: forgets the current job of up to 10,000 lanes in which nothing has run for $1 seconds and that have no live job.
-- A row that another transaction has locked is skipped. Reads all of pitwheel.lane; called once an hour. Uses job_lane.
delete from pitwheel.lane
where lane.ctid = any (array(
    select lane.ctid
    from pitwheel.lane
    where lane.changed_at < now() - $1::float8 * interval '1 second'
      and not exists (select from pitwheel.job where job.lane = lane.lane)
    limit 10000
    for update skip locked
))
