-- writers.sql: the transactions that may have written to the outbox and have not ended, and whether each is prepared (two-phase
-- commit; it has no backend). Each holds a lock on the table, taken before its first id was drawn.
select distinct lock.virtualtransaction, lock.pid is null as prepared
from pg_locks as lock
where lock.locktype = 'relation'
  and lock.database = (select pg_database.oid from pg_database where pg_database.datname = current_database())
  and lock.relation = 'pitwheel.outbox'::regclass
  and lock.mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  and lock.granted
  and lock.pid is distinct from pg_backend_pid()
