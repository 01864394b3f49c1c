-- drop_attempts.sql: what earlier attempts of a job left behind is to be deleted: their claims are lost. Uses version_attempt.
update ingest.version
set state = 'dropped'
where job_id = $1
  and fence < $2
  and state = 'loading'
