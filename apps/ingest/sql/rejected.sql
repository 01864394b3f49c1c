-- rejected.sql: rejected rows of a version by line, after $2, at most $3. Uses the primary key.
select line, column_name, reason, record
from ingest.rejected
where version_id = $1
  and line > $2
order by line
limit $3
