-- outbox_relays.sql: the relays that are alive, and how many shards or entities each holds.
select relay.name, relay.source, relay.strategy, relay.started_at, relay.lease_until,
    case when relay.strategy = 'shards' then (
        select count(*) from pitwheel.outbox_shard as shard where shard.relay = relay.relay
    ) else (
        select count(*) from pitwheel.outbox_claim as claim where claim.relay = relay.relay
    ) end as held
from pitwheel.outbox_relay as relay
where relay.lease_until > clock_timestamp()
order by relay.name, relay.relay
limit 1000
