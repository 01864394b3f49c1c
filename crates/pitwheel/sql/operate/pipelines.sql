-- pipelines.sql: pipelines, newest first, one page at a time. Scans at most $5 rows below the id $1, since a filter may match few;
-- `floor` is the id down to which all rows were scanned; null: there are no more. Uses pipeline_pkey.
with scanned as materialized (
    select pipeline.id
    from pitwheel.pipeline
    where pipeline.id < $1
    order by pipeline.id desc
    limit $5
),
bottom as (
    select min(scanned.id) as floor from scanned having count(*) >= $5
)
select found.id, found.name, found.state, found.on_failure, found.steps, found.open, found.failed, found.created_at,
    found.cancelled_at, found.finished_at, bottom.floor
from (select max(bottom.floor) as floor from bottom) as bottom
left join lateral (
    select pipeline.id, pipeline.name, pitwheel.pipeline_state(pipeline) as state, pipeline.on_failure, pipeline.steps,
        pipeline.open, pipeline.failed, pipeline.created_at, pipeline.cancelled_at, pipeline.finished_at
    from pitwheel.pipeline
    where pipeline.id < $1
      and pipeline.id >= coalesce(bottom.floor, 0)
      and ($2::text is null or pipeline.name = $2)
      and ($3::text is null or pitwheel.pipeline_state(pipeline) = $3)
    order by pipeline.id desc
    limit $4
) as found on true
order by found.id desc nulls last
