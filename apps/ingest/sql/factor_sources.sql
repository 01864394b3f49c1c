-- factor_sources.sql: the lanes whose sources have factors for a module, entry type and year, at most $4.
select lane.module, lane.entry_type, lane.target, lane.method, lane.year
from ingest.source
join ingest.lane on lane.id = source.lane_id
where lane.target = 'factors'
  and lane.method = 'api'
  and lane.module is not distinct from $1
  and (lane.entry_type is null or lane.entry_type = $2)
  and (lane.year is null or lane.year = $3::smallint)
order by lane.id
limit $4
