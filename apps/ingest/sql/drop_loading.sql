-- drop_loading.sql: a version whose job no longer loads it is to be deleted. Zero rows: it was finished meanwhile, or a batch is still
-- written, which is not waited for.
update ingest.version
set state = 'dropped'
where id = any (array(
    select id from ingest.version
    where id = $1
      and state = 'loading'
    for update skip locked))
