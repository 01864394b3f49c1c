-- session_settings.sql: pins what the engine depends on, whatever the defaults of the server, the database or the role are.
-- Sent once per direct connection ($3 false). Through a pooler it is sent with every statement, for the transaction of that
-- statement ($3 true), which is begun as read committed.
--   $1: a statement that the client has given up must not go on and commit, so it ends before the client's own limit; also
--   when the server notices that the client is gone.
--   $2: how long a statement waits for a row that another transaction has locked; 0 means without limit.
--   Plans: a generic plan is made once; a custom plan is never better for these statements, and Postgres would make one per
--   batch. A generic plan must not read a whole table because the table was small when the plan was made. A scan that cannot be
--   avoided (a table of one row) then has a cost that triggers JIT, which takes longer than the statement. A bitmap scan would read
--   and sort a whole level where an index scan reads the first rows.
select set_config('statement_timeout', $1, $3), set_config('lock_timeout', $2, $3),
    set_config('client_connection_check_interval', '2s', $3), set_config('tcp_user_timeout', '10s', $3),
    set_config('default_transaction_isolation', 'read committed', $3), set_config('default_transaction_read_only', 'off', $3),
    set_config('default_transaction_deferrable', 'off', $3), set_config('datestyle', 'ISO', $3), set_config('timezone', 'UTC', $3),
    -- A commit that was answered is on disk. Stronger settings than `on` stay.
    set_config('synchronous_commit', case when current_setting('synchronous_commit') = 'off' then 'on'
        else current_setting('synchronous_commit') end, $3),
    set_config('plan_cache_mode', 'force_generic_plan', $3), set_config('jit', 'off', $3),
    set_config('enable_seqscan', 'off', $3), set_config('enable_bitmapscan', 'off', $3)
