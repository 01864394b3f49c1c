-- source_enabled.sql: the recurring job of the source is enabled; the caller has locked both. Uses source_pkey.
update feeds.source
set disabled_because = null, recurring_id = $2, next_fetch_at = $3, next_fetch_reason = $4, consecutive_failures = 0
where id = $1
