-- listen.sql: receives hints on this connection from now on.
listen pitwheel
