-- drop_attempts.sql: what earlier attempts of a job left behind is to be deleted: their claims are lost. Uses version_attempt. One that
-- still writes a batch is skipped, not waited for: the upkeep drops it later.
update ingest.version
set state = 'dropped'
where id = any (array(
    select id from ingest.version
    where job_id = $1
      and fence < $2
      and state = 'loading'
    for update skip locked))
