-- table_columns.sql: the columns of the table $2 in the schema $1, with their types. Uses pg_attribute_relid_attnum_index.
-- Zero rows: there is no such table.
select attribute.attname::text as name, format_type(attribute.atttypid, null) as type
from pg_attribute as attribute
where attribute.attrelid = to_regclass(format('%I.%I', $1::text, $2::text))
  and attribute.attnum > 0
  and not attribute.attisdropped
order by attribute.attnum
limit 1600
