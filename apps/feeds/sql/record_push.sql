-- record_push.sql: a hub pushed articles of a source. Uses websub_pkey.
with pushed as (
    update feeds.websub
    set last_push_at = clock_timestamp()
    where source_id = $1
)
insert into feeds.fetch (source_id, bytes, duration_ms, articles_found, articles_new, is_push)
values ($1, $2, $3, $4, $5, true)
