-- notify.sql: sends a hint. It does not wait for the disk: a hint lost in a crash costs one poll, and the server-wide lock
-- that a notifying commit takes is held for a shorter time.
select set_config('synchronous_commit', 'off', true), pg_notify($1, $2)
