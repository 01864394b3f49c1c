-- remove_source.sql: forgets where the data of a lane is read. Zero rows: it was not set.
delete from ingest.source
where lane_id = $1
returning lane_id
