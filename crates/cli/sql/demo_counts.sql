-- demo_counts.sql: the results of the demo's jobs, by their ids. `ends` counts rows of the history, `ended` counts jobs: they
-- differ if a job was settled twice. Uses the index job_history_id.
with mine as (
    select mine.id
    from unnest($1::bigint[]) as mine(id)
),
ended as (
    select history.id, history.state, history.crashes
    from mine
    join pitwheel.job_history as history on history.id = mine.id
)
select count(*) as ends,
    count(distinct ended.id) as ended,
    count(distinct ended.id) filter (where ended.state = 'done') as done,
    count(distinct ended.id) filter (where ended.crashes > 0) as taken_over
from ended
