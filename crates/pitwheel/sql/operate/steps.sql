-- steps.sql: the steps of a pipeline in their order, with what their last jobs came to. Uses step_pkey.
select step.name, step.state, step.parents, step.kind, step.queue, step.job_id, step.ended_at, step.result::text as result,
    exists (select from pitwheel.kind where kind.name = step.kind and kind.redacted) as redacted
from pitwheel.step
where step.pipeline = $1
order by step.n
limit 10000
