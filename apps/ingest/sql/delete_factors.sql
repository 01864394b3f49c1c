-- delete_factors.sql: deletes rows of a version, at most $2. Uses the primary key. Zero rows: there are none left.
delete from ingest.factor
where ctid = any (array(select ctid from ingest.factor where version_id = $1 order by version_id, line limit $2))
