-- lost_runs.sql: of the next $2 recurring jobs above the id $1, those that are enabled and planned and have no live job: a person
-- has deleted it, or a program of an older version has finished it. `last` is the id up to which this looked; zero rows: there are
-- no more. Uses recurring_pkey and job_recurring.
with page as materialized (
    select recurring.id, recurring.enabled and recurring.planned as expected
    from pitwheel.recurring
    where recurring.id > $1
    order by recurring.id
    limit $2
)
select max(page.id) as last, array_agg(page.id) filter (
    where page.expected and not exists (select from pitwheel.job where job.recurring = page.id)
) as lost
from page
having count(*) > 0
