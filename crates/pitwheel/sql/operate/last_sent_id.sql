-- last_sent_id.sql: the largest id of the delivered events that are kept; 0: there are none.
select coalesce(max(sent.id), 0) from pitwheel.outbox_sent as sent
