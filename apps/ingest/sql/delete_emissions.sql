-- delete_emissions.sql: deletes rows of a version, at most $2. Uses the primary key. Zero rows: there are none left.
delete from ingest.emission
where ctid = any (array(select ctid from ingest.emission where version_id = $1 order by version_id, line limit $2))
