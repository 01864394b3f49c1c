-- loading.sql: versions that a job loads, or that a process left behind when it died. Uses version_unfinished. At most $1, after $2.
select id, job_id, fence
from ingest.version
where state = 'loading'
  and id > $2
order by id
limit $1
