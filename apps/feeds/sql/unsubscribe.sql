-- unsubscribe.sql: ends a subscription; the caller has locked the source. Zero rows: there is none.
delete from feeds.subscription
where source_id = $1
  and subscriber = $2
returning true
