-- server_address.sql: the address and port at which the server itself accepted this connection; nulls on a Unix socket.
select host(inet_server_addr()) as address, inet_server_port() as port
