-- migration_settings.sql: a migration may take long, waits for other nodes that migrate, and pauses while a table is locked.
set local statement_timeout = 0;
set local lock_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local datestyle = 'ISO';
set local timezone = 'UTC'
