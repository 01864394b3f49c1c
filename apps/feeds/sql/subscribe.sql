-- subscribe.sql: a subscription; the caller has locked the source. Zero rows: there is one.
insert into feeds.subscription (source_id, subscriber)
values ($1, $2)
on conflict do nothing
returning true
