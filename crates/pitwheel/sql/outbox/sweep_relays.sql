-- sweep_relays.sql: declares relays dead whose lease has expired. What they held is free then. Returns how many.
-- A renewal that comes first wins: the condition is checked again on the locked row.
with expired as materialized (
    select relay.relay
    from pitwheel.outbox_relay as relay
    where relay.lease_until < clock_timestamp()
    order by relay.relay
    limit 100
    for update skip locked
),
dead as (
    delete from pitwheel.outbox_relay as relay
    using expired
    where relay.relay = expired.relay
    returning relay.relay
),
freed as (
    delete from pitwheel.outbox_claim as claim
    where claim.relay = any (array(select dead.relay from dead))
)
select count(*) from dead
