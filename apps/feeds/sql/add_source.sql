-- add_source.sql: a source, if none has this URL. Uses source_url. Zero rows: there is one.
insert into feeds.source (url, name, category, priority, fetch_interval_minutes)
values ($1, coalesce($2, $1), $3, coalesce($4::smallint, 0), coalesce($5::int, 60))
on conflict (url) do nothing
returning id
