-- end_parking.sql: ends the parking of entities ($2) of a source ($1). No row for an entity: it is not parked. Needs the locks of lock_parked.sql.
select ended.entity_key from pitwheel.end_parking($1, $2::text[], $3, $4) as ended
