-- token_hashes.sql: the valid tokens, as a server checks them.
select token.hash, token.id, token.name, token.role
from pitwheel.token
where token.revoked_at is null
  and (token.expires_at is null or token.expires_at > now())
limit 10000
