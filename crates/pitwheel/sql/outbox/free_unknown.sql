-- free_unknown.sql: ends the claims of a relay ($1) that it does not know of: all but those with the leases $2. Such a claim was committed and
-- its answer was lost, or a crash of the database undid the commit that ended it. Uses the index on the relay.
-- Zero rows: it knows all of them.
delete from pitwheel.outbox_claim as claim
where claim.relay = $1::text::uuid
  and claim.lease <> all ($2::text[]::uuid[])
returning claim.entity_key
