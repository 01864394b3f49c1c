-- prune_default.sql: deletes what is older than $1 seconds of the next $3 rows of the history's default partition, above the ctid $2.
-- Returns the ctid up to which it looked; null: there are no more rows.
select pitwheel.prune_default(make_interval(secs => $1), $2, $3)
