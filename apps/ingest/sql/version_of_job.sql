-- version_of_job.sql: the last attempt of a job. Uses version_attempt. Zero rows: the job loaded nothing yet.
select id
from ingest.version
where job_id = $1
order by fence desc
limit 1
