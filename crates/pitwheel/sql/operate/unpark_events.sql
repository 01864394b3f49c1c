-- unpark_events.sql: puts back, or deletes, one page ($4) of the events that were moved aside. Zero rows: none is left. Needs the locks of
-- lock_parked.sql.
select page.entity_key, page.events from pitwheel.unpark_events($1, $2::text[], $3, $4) as page
