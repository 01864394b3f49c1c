-- create_pipelines.sql: adds pipelines that were checked, and the jobs of their first steps; one row for each, in the order given. `due`
-- is the queues in which one of those jobs is due now, and `lanes`, in the first row, the lanes that they entered, which are to be
-- promoted after this. Uses the primary key of lane_check.
with added as materialized (
    select new.id, new.due, input.n
    from unnest($1::text[]) with ordinality as input(definition, n)
    cross join lateral pitwheel.insert_pipeline(input.definition::json) as new
),
entered as materialized (
    select pitwheel.entered_lanes() as lanes
    where (select count(*) from added) > 0
)
select added.id, added.due, entered.lanes
from added
left join entered on added.n = 1
order by added.n
