-- now_us.sql: the database's clock, in microseconds since 1970.
select (extract(epoch from clock_timestamp()) * 1000000)::bigint
