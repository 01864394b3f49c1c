-- lock_sources.sql: locks sources before their runs are settled, in the order of their ids, and returns the time. Uses source_pkey.
-- Rows not returned: the source was removed.
select id, recurring_id, clock_timestamp() as now
from feeds.source
where id = any ($1::bigint[])
order by id
for no key update
