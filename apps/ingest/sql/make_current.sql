-- make_current.sql: a loaded version becomes the current one of its lane, which this transaction has locked. Zero rows: the version is
-- not loaded, was dropped, or belongs to another lane.
update ingest.lane
set current_version = version.id
from ingest.version
where lane.id = $1
  and version.id = $2
  and version.lane_id = lane.id
  and version.state = 'loaded'
returning lane.id
