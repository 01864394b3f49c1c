-- lock_registration.sql: one relay of a source ($1) registers at a time, until the transaction ends. A statement of its own, so that the next one sees
-- who has registered before.
select pg_advisory_xact_lock(hashtextextended($1::text, 7236073))
