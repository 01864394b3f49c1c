-- lock_parked.sql: locks the shards of those entities ($2) of a source ($1) that are parked, until the transaction ends, and returns these
-- entities. Fails if their parking cannot end so ($3: `retry`, `skip` or `drop`).
select pitwheel.check_unpark($1, $3), pitwheel.lock_parked($1, $2::text[])
