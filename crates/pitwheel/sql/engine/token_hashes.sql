-- token_hashes.sql: what a server needs to know of the tokens that are good now.
select token.hash, token.id, token.name, token.role
from pitwheel.token
where token.revoked_at is null
  and (token.expires_at is null or token.expires_at > now())
limit 10000
