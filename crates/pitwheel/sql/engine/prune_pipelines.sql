-- prune_pipelines.sql: deletes up to 1,000 pipelines that ended longer than $1 seconds ago, with their steps. Returns how many.
-- Uses pipeline_finished and step_pkey. A pipeline that another transaction has locked is left for later.
with old as materialized (
    select pipeline.id
    from pitwheel.pipeline
    where pipeline.finished_at < now() - $1 * interval '1 second'
    order by pipeline.finished_at, pipeline.id
    limit 1000
    for update skip locked
),
steps as (
    delete from pitwheel.step
    where step.pipeline = any (array(select old.id from old))
),
gone as (
    delete from pitwheel.pipeline
    where pipeline.id = any (array(select old.id from old))
    returning pipeline.id
)
select count(*)
from gone
