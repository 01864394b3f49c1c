-- dropped.sql: versions whose rows are to be deleted. Uses version_unfinished.
select id
from ingest.version
where state = 'dropped'
order by id
limit $1
