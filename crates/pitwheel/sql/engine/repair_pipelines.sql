-- repair_pipelines.sql: ends the live steps of these pipelines whose jobs are gone. Returns how many there were.
select coalesce(sum(pitwheel.repair_pipeline(lost.id)), 0)::bigint as repaired
from (select lost.id from unnest($1::bigint[]) as lost(id) order by lost.id) as lost
