-- units.sql: rows of a version as JSON, by line, after $2, at most $3. Uses the primary key. As text: JSON numbers of other
-- languages would lose digits.
select line, (to_jsonb(unit) - 'version_id')::text as data
from ingest.unit
where version_id = $1
  and line > $2
order by version_id, line
limit $3
