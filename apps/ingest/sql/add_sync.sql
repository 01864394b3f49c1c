-- add_sync.sql: what a job was asked to do. Without a pipeline it is the first job of its own.
insert into ingest.sync (job_id, lane_id, pipeline, kind, file_name, requested_by)
values ($1::bigint, $2, coalesce($3::bigint, $1::bigint), $4, $5, $6)
on conflict (job_id) do nothing
