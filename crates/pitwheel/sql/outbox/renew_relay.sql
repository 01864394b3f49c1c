-- renew_relay.sql: renews the lease of a relay. Zero rows: it was declared dead, and all that it held is lost.
update pitwheel.outbox_relay as relay
set lease_until = clock_timestamp() + relay.lease
where relay.relay = $1::text::uuid
returning true
