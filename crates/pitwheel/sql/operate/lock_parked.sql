-- lock_parked.sql: locks the shards of parked entities ($2) of a source ($1), until the transaction ends. Fails if their parking cannot end
-- so ($3: `retry`, `skip` or `drop`).
select pitwheel.check_unpark($1, $3), pitwheel.lock_parked($1, $2::text[])
