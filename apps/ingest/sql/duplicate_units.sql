-- duplicate_units.sql: two lines of a version that name the same unit. Uses unit_code. Zero rows: none do.
select min(line) as first, max(line) as last, code as what
from ingest.unit
where version_id = $1
group by code
having count(*) > 1
order by 1
limit 1
