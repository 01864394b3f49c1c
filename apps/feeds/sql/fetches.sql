-- fetches.sql: the fetches of one source, newest first: ids below $2, at most $3. Uses fetch_source.
select id, fetched_at, next_fetch_at, status, bytes, duration_ms, articles_found, articles_new, is_push, next_fetch_reason, error
from feeds.fetch
where source_id = $1
  and id < $2
order by id desc
limit $3
