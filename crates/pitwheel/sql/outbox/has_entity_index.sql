-- has_entity_index.sql: whether the table $1 has an index that begins with the columns $2 and $3. Without it, the strategies that claim entities
-- would read the whole table.
select exists (
    select from pg_index as index
    where index.indrelid = to_regclass($1)
      and index.indisvalid
      and index.indnatts >= 2
      and (select attribute.attname from pg_attribute as attribute
           where attribute.attrelid = index.indrelid and attribute.attnum = index.indkey[0]) = $2
      and (select attribute.attname from pg_attribute as attribute
           where attribute.attrelid = index.indrelid and attribute.attnum = index.indkey[1]) = $3
) as has_index, to_regclass($1) is not null as has_table
