-- unpark.sql: ends the parking of entities ($2) of a source ($1): `retry`, `skip` or `drop` ($3). No row for an entity: it is not parked.
select unparked.entity_key, unparked.events from pitwheel.unpark($1, $2::text[], $3, $4) as unparked
