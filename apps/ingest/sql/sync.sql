-- sync.sql: one job. Zero rows: it is no job of the ingestion, or it was long ago.
select sync.job_id, sync.pipeline, sync.requested_at, sync.kind, sync.file_name, sync.requested_by,
       lane.module, lane.entry_type, lane.target, lane.method, lane.year
from ingest.sync
join ingest.lane on lane.id = sync.lane_id
where sync.job_id = $1
