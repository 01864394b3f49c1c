-- add_events.sql: adds events to the outbox, in the order given. Returns their ids in this order.
insert into pitwheel.outbox (entity_key, topic, type, payload, headers)
select input.entity_key, input.topic, input.type, input.payload, input.headers::jsonb
from unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::text[]) with ordinality
    as input(entity_key, topic, type, payload, headers, n)
order by input.n
returning id
