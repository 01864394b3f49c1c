-- websub_end.sql: the subscription at a hub is to end. Uses websub_pkey. Zero rows: there is none.
update feeds.websub
set wanted = false, requested_at = clock_timestamp()
where source_id = $1
returning hub_url, topic_url, token, secret
