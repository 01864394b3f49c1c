-- acquire_shards.sql: takes shards that no living relay holds, up to the fair share of this relay ($1).
-- Returns one row for each shard taken, or one with nulls; each with the fair share, and the shards that other relays were told to hold.
-- Zero rows: the relay is dead or its lease has expired.
-- A shard that another relay takes meanwhile has another lease then, which the locked row is compared with. To look again whether
-- its holder lives would not do: a relay that registered after this statement began would look dead.
with me as materialized (
    select relay.shards
    from pitwheel.outbox_relay as relay
    where relay.relay = $1::text::uuid and relay.lease_until > clock_timestamp()
),
alive as materialized (
    select relay.shards
    from pitwheel.outbox_relay as relay
    where relay.lease_until > clock_timestamp() and relay.strategy = 'shards'
),
share as materialized (
    select me.shards as told, told_others.shards as told_others,
        case when me.shards is not null then cardinality(me.shards)
        else ceil((64 - cardinality(told_others.shards))::numeric
            / greatest((select count(*) from alive where alive.shards is null), 1))::integer end as most
    from me
    cross join lateral (
        select array(select distinct one from alive cross join lateral unnest(alive.shards) as one where me.shards is null)
    ) as told_others(shards)
),
candidate as materialized (
    select shard.shard, shard.lease
    from pitwheel.outbox_shard as shard
    cross join share
    where (shard.relay is null or not exists (
        select from pitwheel.outbox_relay as relay where relay.relay = shard.relay
    ))
      and case when share.told is null then shard.shard <> all (share.told_others) else shard.shard = any (share.told) end
    order by random()
    limit (
        select greatest(share.most - (
            select count(*) from pitwheel.outbox_shard as mine where mine.relay = $1::text::uuid
        ), 0)
        from share
    )
),
free as materialized (
    select shard.shard
    from pitwheel.outbox_shard as shard
    join candidate on candidate.shard = shard.shard
    where shard.lease is not distinct from candidate.lease
    for no key update of shard skip locked
),
taken as (
    update pitwheel.outbox_shard as shard
    set relay = $1::text::uuid, lease = gen_random_uuid(), taken_at = clock_timestamp()
    from free
    where shard.shard = free.shard
    returning shard.shard
)
select taken.shard, share.most, share.told_others
from share
left join taken on true
