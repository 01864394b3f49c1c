-- lock_heads.sql: of these entities ($1), those whose first event is not locked. It is locked until the transaction ends.
-- The head is chosen first and exactly that row is locked: with `skip locked` inside, the second row of a locked entity would be taken.
select head.key
from (
    select entity.key, first.id
    from unnest($1::text[]) as entity(key)
    cross join lateral (
        select source.{id} as id
        from {table} as source
        where source.{key} = entity.key and {waiting}
        order by source.{key}, source.{id}
        limit 1
    ) as first
    order by entity.key
) as head
cross join lateral (
    select source.{id}
    from {table} as source
    where source.{key} = head.key and source.{id} >= head.id and source.{id} <= head.id
    order by source.{key}, source.{id}
    limit 1
    for update skip locked
) as locked
