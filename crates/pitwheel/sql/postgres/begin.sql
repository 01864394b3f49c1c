-- begin.sql: the transaction of one statement that is sent through a pooler.
begin isolation level read committed read write
