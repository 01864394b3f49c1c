-- lanes.sql: lanes by id, above $1, at most $2, with their current versions. A filter that is null takes all. Uses the primary key;
-- there are some thousand lanes.
select lane.id, lane.module, lane.entry_type, lane.target, lane.method, lane.year, lane.current_version,
       version.rows, version.rejected, version.loaded_at, version.job_id
from ingest.lane
left join ingest.version on version.id = lane.current_version
where lane.id > $1
  and ($3::text is null or lane.module = $3)
  and ($4::text is null or lane.entry_type = $4)
  and ($5::text is null or lane.target = $5)
  and ($6::text is null or lane.method = $6)
  and ($7::smallint is null or lane.year = $7)
order by lane.id
limit $2
