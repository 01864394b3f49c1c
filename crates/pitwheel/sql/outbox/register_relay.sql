-- register_relay.sql: a new relay. Returns its id.
insert into pitwheel.outbox_relay (name, source, strategy, lease, lease_until, shards)
values ($1, $2, $3, $4::bigint * interval '1 millisecond', clock_timestamp() + $4::bigint * interval '1 millisecond', $5::smallint[])
returning relay::text
