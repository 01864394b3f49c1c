-- outbox_parked_count.sql: how many entities are parked, counted up to $1.
select count(*) from (select from pitwheel.outbox_parked limit $1) as parked
