-- create_pipelines.sql: adds pipelines that were checked, and the jobs of their first steps; one row for each, in the order given. `due`
-- is the queues in which one of those jobs is due now.
select new.id, new.due
from unnest($1::text[]) with ordinality as input(definition, n)
cross join lateral pitwheel.insert_pipeline(input.definition::json) as new
order by input.n
