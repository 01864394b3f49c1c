-- unpark_limit.sql: the transaction of an unpark ends if its process is stopped between two statements: else it would keep its locks.
set local idle_in_transaction_session_timeout = '10s'
