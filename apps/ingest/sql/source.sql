-- source.sql: where the data of a lane is read. Zero rows: nobody said it.
select location
from ingest.source
where lane_id = $1
