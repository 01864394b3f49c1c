-- sources.sql: all sources, at most $1.
select lane.module, lane.entry_type, lane.target, lane.method, lane.year, source.location
from ingest.source
join ingest.lane on lane.id = source.lane_id
order by lane.module, lane.entry_type, lane.target, lane.year
limit $1
