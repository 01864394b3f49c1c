-- source.sql: one source. Uses source_pkey or source_url. Zero rows: there is no such source.
select source.id, source.created_at, source.last_fetched_at, source.next_fetch_at, source.fetch_interval_minutes,
    source.consecutive_failures, source.priority, source.url, source.name, source.category, source.disabled_because,
    source.next_fetch_reason, source.last_error, source.moved_to, source.recurring_id,
    (select count(*) from feeds.subscription where subscription.source_id = source.id) as subscribers,
    (select websub.lease_until from feeds.websub where websub.source_id = source.id and websub.wanted) as push_until
from feeds.source
where source.id = $1
