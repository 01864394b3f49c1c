-- to_fetch.sql: what the fetches of these sources need. Uses source_pkey. Rows not returned: the source was removed.
select source.id, source.url, source.etag, source.last_modified, source.fetch_interval_minutes, source.consecutive_failures,
    source.moved_to, source.moved_sightings, source.hub_url, source.topic_url,
    coalesce(websub.lease_until > clock_timestamp() and websub.wanted, false) as is_pushed
from feeds.source
left join feeds.websub on websub.source_id = source.id
where source.id = any ($1::bigint[])
  and source.disabled_because is null
