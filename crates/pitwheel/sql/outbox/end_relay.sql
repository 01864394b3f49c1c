-- end_relay.sql: a relay signs off. All that it holds is free at once.
with freed as (
    delete from pitwheel.outbox_claim as claim
    where claim.relay = $1::text::uuid
)
delete from pitwheel.outbox_relay as relay
where relay.relay = $1::text::uuid
