-- plan_settings.sql: session settings for prepared statements, sent once per direct connection.
-- A generic plan is made once; a custom plan is never better for these statements, and Postgres would make one per batch.
-- A generic plan must not read a whole table because the table was small when the plan was made. A scan that cannot be
-- avoided (a table of one row) then has a cost that triggers JIT, which takes longer than the statement.
set plan_cache_mode = force_generic_plan;
set enable_seqscan = off;
set jit = off
