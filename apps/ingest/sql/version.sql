-- version.sql: one version. Zero rows: there is none, or it was dropped.
select version.id, version.lane_id, version.job_id, version.rows, version.rejected, version.started_at, version.loaded_at, version.state,
       version.error, lane.module, lane.entry_type, lane.target, lane.method, lane.year,
       lane.current_version is not distinct from version.id as is_current
from ingest.version
join ingest.lane on lane.id = version.lane_id
where version.id = $1
  and version.state <> 'dropped'
