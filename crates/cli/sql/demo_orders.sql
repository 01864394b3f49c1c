-- demo_orders.sql: the table of the demo's orders. It is created once.
create table if not exists demo_order (
    number bigint generated always as identity primary key,
    status text   not null
)
