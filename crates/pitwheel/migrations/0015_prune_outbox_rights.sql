-- prune_outbox drops tables with the rights of the owner. Only the roles of relays may call it, not every role that may use the schema.
revoke execute on function pitwheel.prune_outbox(interval) from public;
