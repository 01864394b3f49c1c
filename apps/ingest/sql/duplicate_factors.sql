-- duplicate_factors.sql: two lines of a version that name the same category and measure. Uses factor_category. Zero rows: none do.
select min(line) as first, max(line) as last, format('%s, %s', category, measure) as what
from ingest.factor
where version_id = $1
group by category, measure
having count(*) > 1
order by 1
limit 1
