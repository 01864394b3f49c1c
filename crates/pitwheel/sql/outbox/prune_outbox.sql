-- prune_outbox.sql: drops the days of delivered events that are older than $1 seconds, and creates the partitions of the coming week.
select pitwheel.prune_outbox(make_interval(secs => $1))
