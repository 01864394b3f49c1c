-- migration_lock.sql: one node migrates at a time. The transaction holds the lock, so it works through a pooler and cannot leak.
select pg_advisory_xact_lock(hashtextextended('pitwheel.migrate', 0))
