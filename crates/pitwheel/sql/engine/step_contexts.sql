-- step_contexts.sql: pipeline, name and parents of these steps, in one value each. Uses step_pkey.
-- Apart from the claims, most of which have no steps: each would pay for preparing to read this.
-- Rows not returned: the pipeline was deleted.
select step_context.context
from unnest($1::bigint[], $2::text[]) as asked(pipeline, name)
cross join lateral (
    select step_context.context
    from pitwheel.step_context
    where step_context.pipeline = asked.pipeline
      and step_context.name = asked.name
    limit 1
) as step_context
