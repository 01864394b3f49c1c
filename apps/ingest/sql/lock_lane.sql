-- lock_lane.sql: locks a lane until the transaction ends. Whoever changes its current version, or drops a version, begins with this.
-- Zero rows: there is no such lane.
select current_version
from ingest.lane
where id = $1
for no key update
