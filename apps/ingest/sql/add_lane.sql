-- add_lane.sql: a lane, if there is none with these parts. Uses lane_parts. Zero rows: there is one.
insert into ingest.lane (module, entry_type, target, method, year)
values ($1, $2, $3, $4, $5)
on conflict on constraint lane_parts do nothing
returning id
