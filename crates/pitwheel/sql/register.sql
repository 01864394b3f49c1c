-- register.sql: a new worker with a lease. Its id is the holder of what it claims.
insert into pitwheel.worker (name, lease, lease_until)
values ($1, $2::bigint * interval '1 millisecond', clock_timestamp() + $2::bigint * interval '1 millisecond')
returning id
