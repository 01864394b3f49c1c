-- sources.sql: one page of sources, oldest first: ids above $1, at most $2. Uses source_pkey. With $3, those that subscriber has.
select source.id, source.created_at, source.last_fetched_at, source.next_fetch_at, source.fetch_interval_minutes,
    source.consecutive_failures, source.priority, source.url, source.name, source.category, source.disabled_because,
    source.next_fetch_reason, source.last_error, source.moved_to, source.recurring_id,
    (select count(*) from feeds.subscription where subscription.source_id = source.id) as subscribers,
    (select websub.lease_until from feeds.websub where websub.source_id = source.id and websub.wanted) as push_until
from feeds.source
where source.id > $1
  and ($3::text is null or exists (
      select from feeds.subscription
      where subscription.source_id = source.id and subscription.subscriber = $3
  ))
order by source.id
limit $2
