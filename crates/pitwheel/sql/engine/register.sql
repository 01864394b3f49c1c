-- register.sql: adds a worker with a lease. Its id is the holder of what it claims.
insert into pitwheel.worker (name, lease, lease_until, transport, queues, kinds, slots, token)
values (
    $1, $2::bigint * interval '1 millisecond', clock_timestamp() + $2::bigint * interval '1 millisecond', $3, $4, $5, $6, $7
)
returning id
