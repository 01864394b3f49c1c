-- migration_lock_timeout.sql: how long a migration waits for a table. Claims, settles and enqueues that come later wait behind it.
set local lock_timeout = '2s'
