-- locked_entities.sql: like locked_events.sql, for events ($1 keys, $2 ids) of any source. The rows are locked by their keys, not by ctid: a
-- ctid is unique within one partition only, and a team may update its rows.
with free as materialized (
    select event.id
    from unnest($1::text[], $2::bigint[]) as asked(key, id)
    cross join lateral (
        select source.{id}::bigint as id
        from {table} as source
        where source.{key} = asked.key and source.{id} >= asked.id and source.{id} <= asked.id
        order by source.{key}, source.{id}
        limit 1
        for update skip locked
    ) as event
)
select event.id
from unnest($1::text[], $2::bigint[]) as asked(key, id)
cross join lateral (
    select source.{id}::bigint as id
    from {table} as source
    where source.{key} = asked.key and source.{id} >= asked.id and source.{id} <= asked.id
    order by source.{key}, source.{id}
    limit 1
) as event
where (event.id in (select free.id from free)) is not true
