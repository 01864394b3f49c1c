-- migration_settings.sql: a migration may take long, and waits for other nodes that migrate.
set local statement_timeout = 0;
set local lock_timeout = 0;
set local datestyle = 'ISO';
set local timezone = 'UTC'
