-- versions.sql: the versions of a lane, newest first, below $2, at most $3. Uses version_lane.
select version.id, version.lane_id, version.job_id, version.rows, version.rejected, version.started_at, version.loaded_at, version.state,
       version.error, lane.module, lane.entry_type, lane.target, lane.method, lane.year,
       lane.current_version is not distinct from version.id as is_current
from ingest.version
join ingest.lane on lane.id = version.lane_id
where version.lane_id = $1
  and version.id < $2
  and version.state <> 'dropped'
order by version.id desc
limit $3
