-- prune_lanes.sql: of the next 10,000 lanes after $2, forgets the current job of those in which nothing has run for $1 seconds and that
-- have no live job. A row that another transaction has locked is skipped. `last` is the lane up to which this looked; null: there are
-- no more. Uses lane_pkey and job_lane.
with page as materialized (
    select lane.lane
    from pitwheel.lane
    where lane.lane > $2
    order by lane.lane
    limit 10000
),
forgotten as (
    delete from pitwheel.lane
    where lane.lane = any (array(
        select lane.lane
        from pitwheel.lane
        where lane.lane > $2
          and lane.lane <= (select max(page.lane) from page)
          and lane.changed_at < now() - $1::float8 * interval '1 second'
          and not exists (select from pitwheel.job where job.lane = lane.lane)
        for update skip locked
    ))
)
select max(page.lane) as last from page
