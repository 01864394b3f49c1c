-- source.sql: where the data of a lane is read. Zero rows: it was not set.
select location
from ingest.source
where lane_id = $1
