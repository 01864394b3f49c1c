-- lock_entities.sql: takes the order guard of these entities, in one order, so that two transactions cannot wait for each other.
-- The locks are held until the transaction ends.
select pitwheel.lock_entity(entity.key)
from (select distinct input.key from unnest($1::text[]) as input(key) order by input.key limit 1000) as entity
