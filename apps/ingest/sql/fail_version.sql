-- fail_version.sql: the data cannot be loaded. Its rejected rows are kept. Zero rows: the version was dropped meanwhile.
update ingest.version
set state = 'failed', error = $2, rejected = $3
where id = $1
  and state = 'loading'
