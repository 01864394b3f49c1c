-- syncs.sql: jobs, newest first, below $1, at most $2. A filter that is null takes all. Uses the primary key, and sync_lane for one lane.
select sync.job_id, sync.pipeline, sync.requested_at, sync.kind, sync.file_name, sync.requested_by,
       lane.module, lane.entry_type, lane.target, lane.method, lane.year
from ingest.sync
join ingest.lane on lane.id = sync.lane_id
where sync.job_id < $1
  and ($3::text is null or lane.module = $3)
  and ($4::text is null or lane.entry_type = $4)
  and ($5::text is null or lane.target = $5)
  and ($6::text is null or lane.method = $6)
  and ($7::smallint is null or lane.year = $7)
order by sync.job_id desc
limit $2
