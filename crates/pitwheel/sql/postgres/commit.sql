-- commit.sql: the end of the transaction that begin.sql began.
commit
