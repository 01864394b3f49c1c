-- sweep_relays.sql: declares relays dead whose lease has expired. What they held is free then. Returns how many.
-- A renewal that comes first wins: the condition is checked again on the locked row.
-- A lease that ends later than its length from now (the clock jumped back) is cut, as in sweep.sql.
-- A claim that another transaction has locked is not waited for: it stays without a relay, and candidates.sql finds it. Uses the index on
-- the relay and outbox_claim_pkey.
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
held as materialized (
    select claim.source, claim.entity_key
    from pitwheel.outbox_claim as claim
    where claim.relay = any (array(select dead.relay from dead))
    for update skip locked
),
freed as (
    delete from pitwheel.outbox_claim as claim
    using held
    where claim.source = held.source
      and claim.entity_key = held.entity_key
)
select count(*) from dead
