-- prune_history.sql: drops the partitions of the history that are older than $1 seconds, and creates those of the coming week.
-- Returns how many were dropped.
select pitwheel.prune_history(make_interval(secs => $1))
