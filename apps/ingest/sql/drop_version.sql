-- drop_version.sql: a version of a lane that this transaction has locked is to be deleted, unless it is current. Zero rows: it is.
update ingest.version
set state = 'dropped'
where id = $2
  and lane_id = $1
  and state in ('loaded', 'failed')
  and not exists (select from ingest.lane where lane.id = $1 and lane.current_version = version.id)
returning id
