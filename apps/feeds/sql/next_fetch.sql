-- next_fetch.sql: the next run of the recurring job was moved. Uses source_pkey. Zero rows: the source is disabled or was removed.
update feeds.source
set next_fetch_at = clock_timestamp(), next_fetch_reason = $2
where id = $1
  and disabled_because is null
returning recurring_id
