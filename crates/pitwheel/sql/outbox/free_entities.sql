-- free_entities.sql: ends the claims of entities ($2, leases $3) of a source ($1).
delete from pitwheel.outbox_claim as claim
using unnest($2::text[], $3::text[]) as asked(key, lease)
where claim.source = $1 and claim.entity_key = asked.key and claim.lease = asked.lease::uuid
