-- remove_version.sql: a dropped version that has no rows any more.
delete from ingest.version
where id = $1
  and state = 'dropped'
