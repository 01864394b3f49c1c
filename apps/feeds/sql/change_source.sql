-- change_source.sql: changes the given settings of a source, which the caller has locked. Uses source_pkey.
update feeds.source
set name = coalesce($2, name),
    category = coalesce($3, category),
    priority = coalesce($4::smallint, priority),
    fetch_interval_minutes = coalesce($5::int, fetch_interval_minutes)
where id = $1
returning priority, fetch_interval_minutes
