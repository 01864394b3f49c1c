-- set_source.sql: where the data of a lane is read.
insert into ingest.source (lane_id, location)
values ($1, $2)
on conflict (lane_id) do update
set location = excluded.location, changed_at = clock_timestamp()
