-- entry_types.sql: the entry types and years of a module that have current entries, at most $3; with a year, of that year.
select distinct entry_type, year
from ingest.lane
where module is not distinct from $1
  and ($2::smallint is null or year = $2)
  and target = 'entries'
  and method <> 'computed'
  and current_version is not null
order by entry_type, year
limit $3
