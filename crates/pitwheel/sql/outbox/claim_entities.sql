-- claim_entities.sql: claims entities ($2) of a source ($1) for a relay ($3), each with a lease of its own. It is sent after the locks were
-- taken, so that its snapshot sees the claims that were committed before. An entity that is held or parked is left out.
-- Zero rows: none is free, or the relay is dead.
insert into pitwheel.outbox_claim (source, entity_key, relay, lease)
select $1, entity.key, relay.relay, gen_random_uuid()
from unnest($2::text[]) as entity(key)
join pitwheel.outbox_relay as relay on relay.relay = $3::text::uuid
where not exists (
    select from pitwheel.outbox_parked as parked where parked.source = $1 and parked.entity_key = entity.key
)
on conflict (source, entity_key) do nothing
returning entity_key, lease::text
