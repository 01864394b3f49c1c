-- superseded.sql: versions that are to be dropped: beyond the newest $1 that were loaded for a lane, and failures older than a week.
-- At most $2. Uses version_lane.
select version.id, version.lane_id
from ingest.version
join ingest.lane on lane.id = version.lane_id
where version.id is distinct from lane.current_version
  and (version.state = 'failed' and version.started_at < clock_timestamp() - interval '7 days'
       or version.state = 'loaded' and (
           select count(*)
           from ingest.version newer
           where newer.lane_id = version.lane_id and newer.id > version.id and newer.state = 'loaded') >= $1)
order by version.id
limit $2
