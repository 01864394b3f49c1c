-- lane_by_parts.sql: the lane with these parts. Uses lane_parts: each statement is planned for its values, so a part is compared either
-- with a value or with null. Zero rows: there is none.
select id, current_version
from ingest.lane
where (module = $1 or $1::text is null and module is null)
  and (entry_type = $2 or $2::text is null and entry_type is null)
  and target = $3
  and method = $4
  and (year = $5 or $5::smallint is null and year is null)
