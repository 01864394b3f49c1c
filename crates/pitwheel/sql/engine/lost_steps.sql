-- lost_steps.sql: of the next $2 running pipelines above the id $1, up to the one that makes $3 steps full, those that have a live step
-- without a job. `last` is the id up to which this looked; zero rows: there are no more. Uses pipeline_running, step_pkey and job_step.
with page as materialized (
    select listed.id
    from (
        select pipeline.id, sum(pipeline.steps) over (order by pipeline.id) - pipeline.steps as before
        from pitwheel.pipeline
        where pipeline.finished_at is null
          and pipeline.id > $1
        order by pipeline.id
        limit $2
    ) as listed
    where listed.before < $3
)
select max(page.id) as last, array_agg(page.id) filter (
    where exists (
        select from pitwheel.step
        where step.pipeline = page.id
          and step.state = 'live'
          and not exists (select from pitwheel.job where job.pipeline = step.pipeline and job.step = step.name)
    )
) as lost
from page
having count(*) > 0
