-- claim_limit.sql: the transaction of a claim ends if its relay is stopped between two statements: else it would keep its locks until it goes on.
set local idle_in_transaction_session_timeout = '1s'
