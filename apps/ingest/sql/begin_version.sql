-- begin_version.sql: an attempt of a job begins to load.
insert into ingest.version (lane_id, job_id, fence)
values ($1, $2, $3)
returning id
