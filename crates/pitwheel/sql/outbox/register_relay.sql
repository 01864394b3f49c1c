-- register_relay.sql: a new relay. Returns its id. Shards and claims of entities do not know of each other, so relays of one source must use the
-- same of the two. Needs the lock of lock_registration.sql.
-- Zero rows: a relay of the other kind is registered.
insert into pitwheel.outbox_relay (name, source, strategy, lease, lease_until, shards)
select $1, $2, $3, $4::bigint * interval '1 millisecond', clock_timestamp() + $4::bigint * interval '1 millisecond', $5::smallint[]
where not exists (
    select from pitwheel.outbox_relay as other
    where other.source = $2 and (other.strategy = 'shards') <> ($3 = 'shards')
)
returning relay::text
