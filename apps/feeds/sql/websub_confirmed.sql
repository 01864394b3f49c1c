-- websub_confirmed.sql: the hub confirmed a subscription for $2 seconds. Uses websub_token. Zero rows: it is not wanted.
update feeds.websub
set lease_until = clock_timestamp() + $2 * interval '1 second', denied = null
where token = $1
  and wanted
returning source_id
