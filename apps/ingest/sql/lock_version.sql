-- lock_version.sql: a version that is being loaded, locked until its batch is committed. No other transaction drops it
-- meanwhile, so that no row is written after its rows were deleted. Zero rows: it was dropped, because its attempt has lost the job.
select id
from ingest.version
where id = $1
  and state = 'loading'
for share
