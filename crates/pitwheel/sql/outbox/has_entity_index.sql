-- has_entity_index.sql: whether the table $1 exists, whether it has an index that begins with the columns $2 and $3, and whether $2 and $3
-- are never null. Without the index, the strategies that claim entities would read the whole table; an event without a key would never be
-- claimed, and one without an id has no place in the order.
select to_regclass($1) is not null as has_table, exists (
    select from pg_index as index
    where index.indrelid = to_regclass($1)
      and index.indisvalid
      and index.indnatts >= 2
      and (select attribute.attname from pg_attribute as attribute
           where attribute.attrelid = index.indrelid and attribute.attnum = index.indkey[0]) = $2
      and (select attribute.attname from pg_attribute as attribute
           where attribute.attrelid = index.indrelid and attribute.attnum = index.indkey[1]) = $3
) as has_index, exists (
    select from pg_attribute as attribute
    where attribute.attrelid = to_regclass($1) and attribute.attname = $2 and attribute.attnotnull
) as has_key, exists (
    select from pg_attribute as attribute
    where attribute.attrelid = to_regclass($1) and attribute.attname = $3 and attribute.attnotnull
) as has_id
