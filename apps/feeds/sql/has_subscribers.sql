-- has_subscribers.sql: whether a source has subscribers. A statement after the lock of the source, so that it sees everything that
-- was committed before the lock was given. Uses subscription_pkey.
select exists (select from feeds.subscription where source_id = $1)
