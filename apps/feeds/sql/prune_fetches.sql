-- prune_fetches.sql: deletes the oldest fetches that are older than 30 days, at most 10,000. Uses fetch_pkey: ids are in the order
-- of time, so it reads no more than it deletes and one row more.
delete from feeds.fetch
where id in (
    select old.id
    from (select record.id, record.fetched_at from feeds.fetch as record order by record.id limit 10000) as old
    where old.fetched_at < clock_timestamp() - interval '30 days'
)
