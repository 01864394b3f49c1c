-- now.sql: the time by the database's clock, which decides what is due and what has expired.
select clock_timestamp()
