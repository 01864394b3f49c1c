-- due.sql: all sources are due again.
update pitwheel.job set run_at = clock_timestamp() where kind = 'fetch_feed'
