-- demo_place.sql: places an order and writes its event, in one statement. Returns the number of the order.
with placed as (
    insert into demo_order (status) values ('placed') returning number
), event as (
    insert into pitwheel.outbox (entity_key, topic, type, payload)
    select 'order-' || placed.number, 'orders', 'order.placed',
        convert_to(json_build_object('order', placed.number)::text, 'UTF8')
    from placed
)
select placed.number
from placed
