-- record_fetches.sql: what became of the fetches of sources, which the caller has locked; and one row of history for each.
-- A success resets the failures. Uses source_pkey.
with given as materialized (
    select given.*
    from unnest($1::bigint[], $2::int[], $3::int[], $4::int[], $5::int[], $6::int[], $7::text[], $8::timestamptz[],
        $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[])
        as given(source_id, status, bytes, duration_ms, found, new, error, next_fetch_at, reason, etag, last_modified,
            moved_to, hub_url, topic_url)
),
changed as (
    update feeds.source
    set last_fetched_at = case when given.error is null then clock_timestamp() else source.last_fetched_at end,
        consecutive_failures = case when given.error is null then 0 else source.consecutive_failures + 1 end,
        last_error = given.error,
        -- A source that was disabled during the fetch has no next one.
        next_fetch_at = case when source.disabled_because is null then given.next_fetch_at end,
        next_fetch_reason = case when source.disabled_because is null then given.reason end,
        etag = given.etag,
        last_modified = given.last_modified,
        moved_sightings = case
            when given.moved_to is null then 0
            when given.moved_to = source.moved_to then source.moved_sightings + 1
            else 1
        end,
        moved_to = given.moved_to,
        hub_url = given.hub_url,
        topic_url = given.topic_url
    from given
    where source.id = given.source_id
)
insert into feeds.fetch (
    source_id, status, bytes, duration_ms, articles_found, articles_new, is_push, error, next_fetch_at, next_fetch_reason
)
select given.source_id, given.status, given.bytes, given.duration_ms, given.found, given.new, false, given.error,
    given.next_fetch_at, given.reason
from given
