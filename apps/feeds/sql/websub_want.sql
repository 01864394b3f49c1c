-- websub_want.sql: the subscription at a hub is wanted, or wanted no more. The token and the secret of a source do not change, so
-- a renewal replaces the subscription that the hub has. Uses websub_pkey. Zero rows: there is nothing to end.
insert into feeds.websub as websub (source_id, wanted, hub_url, topic_url, token, secret)
select source.id, true, source.hub_url, source.topic_url, $3, $4
from feeds.source
where source.id = $1
  and $2
  and source.disabled_because is null
  and source.hub_url is not null
  and source.topic_url is not null
on conflict (source_id) do update
set wanted = true, requested_at = clock_timestamp(), hub_url = excluded.hub_url, topic_url = excluded.topic_url, denied = null
returning websub.hub_url, websub.topic_url, websub.token, websub.secret
