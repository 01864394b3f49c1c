-- free_entities.sql: ends the claims of entities ($2, leases $3) of a source ($1). A claim that another transaction has locked stays: its
-- entity is held until the next look for dead or unknown claims. Uses outbox_claim_pkey.
with held as materialized (
    select claim.entity_key
    from unnest($2::text[], $3::text[]) as asked(key, lease)
    cross join lateral (
        select known.entity_key
        from pitwheel.outbox_claim as known
        where known.source = $1
          and known.entity_key = asked.key
          and known.lease = asked.lease::uuid
        for update skip locked
    ) as claim
)
delete from pitwheel.outbox_claim as claim
using held
where claim.source = $1
  and claim.entity_key = held.entity_key
