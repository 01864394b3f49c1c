-- sweep_relays.sql: declares relays dead whose lease has expired. What they held is free then. Returns how many.
-- A renewal that comes first wins: the condition is checked again on the locked row.
-- A lease that ends later than its length from now (the clock jumped back) is cut, as in sweep.sql.
with changed as materialized (
    select relay.relay
    from pitwheel.outbox_relay as relay
    where relay.lease_until < clock_timestamp()
       or relay.lease_until > clock_timestamp() + relay.lease
    order by relay.relay
    limit 100
    for update skip locked
),
cut as (
    update pitwheel.outbox_relay as relay
    set lease_until = clock_timestamp() + relay.lease
    from changed
    where relay.relay = changed.relay
      and relay.lease_until > clock_timestamp() + relay.lease
),
dead as (
    delete from pitwheel.outbox_relay as relay
    using changed
    where relay.relay = changed.relay
      and relay.lease_until < clock_timestamp()
    returning relay.relay
),
freed as (
    delete from pitwheel.outbox_claim as claim
    where claim.relay = any (array(select dead.relay from dead))
)
select count(*) from dead
