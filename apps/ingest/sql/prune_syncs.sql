-- prune_syncs.sql: deletes what was requested more than 90 days ago, at most 10,000 rows, oldest first. The jobs of a lane keep their
-- ids in its versions.
delete from ingest.sync
where job_id = any (array(
    select job_id from ingest.sync order by job_id limit 10000))
  and requested_at < clock_timestamp() - interval '90 days'
