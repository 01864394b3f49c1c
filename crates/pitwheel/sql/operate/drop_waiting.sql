-- drop_waiting.sql: deletes the events of parked entities ($1) that were not moved aside, among $3 ids above $2. Returns the id to go on from.
-- Zero rows: none is left. Needs the locks of lock_parked.sql.
select page.next_above from pitwheel.drop_waiting($1::text[], $2, $3) as page
