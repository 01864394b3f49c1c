-- add_rejected.sql: rows of a file that cannot be loaded.
insert into ingest.rejected (version_id, line, column_name, reason, record)
select $1, line, column_name, reason, record
from unnest($2::bigint[], $3::text[], $4::text[], $5::text[]) as row (line, column_name, reason, record)
