-- source_disabled.sql: the recurring job of the source is disabled; the caller has locked both. Uses source_pkey.
update feeds.source
set disabled_because = $2, next_fetch_at = null, next_fetch_reason = null
where id = $1
