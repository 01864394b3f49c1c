-- pipeline.sql: one pipeline. Zero rows: there is none with this id, or it was pruned. Uses pipeline_pkey.
select pipeline.id, pipeline.name, pitwheel.pipeline_state(pipeline) as state, pipeline.on_failure, pipeline.steps,
    pipeline.open, pipeline.failed, pipeline.created_at, pipeline.cancelled_at, pipeline.finished_at
from pitwheel.pipeline
where pipeline.id = $1
