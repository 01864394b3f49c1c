-- delete_units.sql: deletes rows of a version, at most $2. Uses the primary key. Zero rows: there are none left.
delete from ingest.unit
where ctid = any (array(select ctid from ingest.unit where version_id = $1 order by version_id, line limit $2))
