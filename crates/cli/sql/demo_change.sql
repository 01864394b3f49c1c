-- demo_change.sql: order $1 gets the status $2, and its event is written, in one statement. Uses the primary key.
-- Zero rows: there is no such order.
with changed as (
    update demo_order set status = $2 where number = $1 returning number, status
)
insert into pitwheel.outbox (entity_key, topic, type, payload)
select 'order-' || changed.number, 'orders', 'order.' || changed.status,
    convert_to(json_build_object('order', changed.number)::text, 'UTF8')
from changed
