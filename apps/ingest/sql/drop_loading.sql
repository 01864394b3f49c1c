-- drop_loading.sql: a version whose job no longer loads it is to be deleted. Zero rows: it was finished meanwhile.
update ingest.version
set state = 'dropped'
where id = $1
  and state = 'loading'
