-- finish_version.sql: everything is loaded. Zero rows: the version was dropped meanwhile, because another attempt of its job began.
update ingest.version
set state = 'loaded', loaded_at = clock_timestamp(), rows = $2, rejected = $3
where id = $1
  and state = 'loading'
returning id
