-- websub_denied.sql: the hub refused a subscription, or ended it. Uses websub_token. Zero rows: no subscription has this token.
update feeds.websub
set lease_until = null, denied = $2
where token = $1
returning source_id
