-- last_id.sql: the last id that was drawn; 0: none was. Read before writers.sql: whoever drew an id up to this one and has not ended holds
-- a lock then.
select case when outbox_id_seq.is_called then outbox_id_seq.last_value else 0 end from pitwheel.outbox_id_seq
