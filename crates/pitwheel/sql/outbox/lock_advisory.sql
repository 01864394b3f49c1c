-- lock_advisory.sql: of these entities ($1), those whose advisory lock is free. It is held until the transaction ends, and takes 64 bits of
-- the key and of the source ($2): two entities with one lock only wait for each other.
-- The list is limited by the caller. A lock in the condition of a limited or sorted query would be taken for entities that are not returned.
select entity.key
from unnest($1::text[]) as entity(key)
where pg_try_advisory_xact_lock(hashtextextended(entity.key, hashtextextended($2::text, 7236072)))
